# Every target sets itself up: a virtual environment in $(VENV) with pinned dependencies. Python 3.11 or newer.
VENV ?= .venv
OUT ?= demo
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
FLARE := $(VENV)/.flare
PIPELINE := $(VENV)/.pipeline
DOCS := $(VENV)/.docs
DEVICE := $(VENV)-device
DEFAULT := bundles/imagenet-lite0

.PHONY: pictures bundles bundle-imagenet bundle-wheel demo demo-train demo-pipeline demo-android test test-slow test-full test-studies fuzz fuzz-native kills compatibility measure-cuda docs device-test test-newest lint clean
.DELETE_ON_ERROR:

NATIVE := $(wildcard edge/runtimes/native_head/*)

# Installs this checkout with an extra: by uv in a minute or two; pip, in its place, takes five times as long.
install = $(BIN)/uv pip install --python $(BIN)/python --quiet --constraint constraints.txt --editable '.[$(1)]' || \
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[$(1)]'

$(INSTALLED): pyproject.toml setup.py constraints.txt $(NATIVE)
	@echo "Installs every runtime and torch into $(VENV): 7 GB"
	@test -n "$(PYTHON)" || { echo "refocus needs Python 3.11 or newer with venv (Debian: apt install python3-venv)"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt uv || echo "no uv for this machine: pip installs"
	$(call install,dev)
	@touch $@

# The slow suite also starts real federated servers and clients; nothing else needs their library.
$(FLARE): $(INSTALLED)
	$(call install,flare)
	@touch $@

# Retraining's own libraries, and those of its workflow template; the fast suite needs none of them.
$(PIPELINE): $(INSTALLED)
	$(call install,argo)
	@touch $@

# What builds the documentation site; the slow suite builds it too.
$(DOCS): $(INSTALLED)
	$(call install,docs)
	@touch $@

# The device part and the default bundle, without torch. The constraints are for Python 3.11 and newer.
PINNED = $(shell $(PYTHON) -c 'import sys; print("--constraint constraints.txt" * (sys.version_info >= (3, 11)))')
$(DEVICE)/.installed: pyproject.toml setup.py constraints.txt $(NATIVE) $(DEFAULT)/pyproject.toml
	@test -n "$(PYTHON)" || { echo "refocus needs Python 3.10 or newer with venv (Debian: apt install python3-venv)"; exit 1; }
	@echo "Installs numpy, Pillow and ONNX Runtime into $(DEVICE): 220 MB, 60 MB to download; no torch"
	$(PYTHON) -m venv $(DEVICE)
	$(DEVICE)/bin/python -m pip install --quiet $(PINNED) --editable '.[cpu]' ./$(DEFAULT)
	@touch $@

# An album of photos with the default bundle: PHOTOS=FOLDER names your own.
demo: $(DEVICE)/.installed
	$(DEVICE)/bin/python examples/demo.py --out $(OUT) $(if $(PHOTOS),--photos "$$PHOTOS")

# Training, export and evaluation on drawn letters.
demo-train: $(INSTALLED)
	$(BIN)/refocus demo --out $(OUT)-train

# The default bundle, from the package of its weights; with REFOCUS_DATA, calibrated and measured again on its photos.
bundle-imagenet: $(INSTALLED)
	$(if $(REFOCUS_DATA),OMP_NUM_THREADS=1 $(BIN)/python $(DEFAULT)/build.py --measure $(REFOCUS_DATA)/photos)
	OMP_NUM_THREADS=1 $(BIN)/python $(DEFAULT)/build.py

# The wheel of the default bundle, in dist/; it needs nothing but pip.
bundle-wheel:
	rm -rf $(DEFAULT)/build
	$(PYTHON) -m pip wheel --quiet --no-deps --wheel-dir dist ./$(DEFAULT)

# Example bundles in a few minutes. Of every form, on embedded letters: bundles/window, streaming, upgrade, bank, condensed.
# bundles/imagenet is the default bundle for more targets. Goes on where it stopped, and makes the same bytes on the same
# machine. examples/bundles.toml has the settings.
BUNDLES ?= bundles
EXAMPLES := window streaming upgrade bank condensed imagenet
HEADS := $(BUNDLES)/run/seed-0
TAPER := $(BUNDLES)/taper
REFOCUS := OMP_NUM_THREADS=1 $(BIN)/refocus --quiet
bundles: $(foreach name,$(EXAMPLES),$(BUNDLES)/$(name)/manifest.json)
$(HEADS)/iciia_t.json: | $(INSTALLED)
	$(REFOCUS) train iciia $(BUNDLES)/run --config examples/bundles.toml
$(HEADS)/iciia_t_causal.json: | $(HEADS)/iciia_t.json
	$(REFOCUS) train iciia $(BUNDLES)/run --config examples/bundles.toml --set block.attention=causal
$(BUNDLES)/window/manifest.json: | $(HEADS)/iciia_t.json
	$(REFOCUS) export $(HEADS)/iciia_t.safetensors --personalise head --to onnx:fp32,executorch:fp32,native:w16 --out $(@D)
$(BUNDLES)/streaming/manifest.json: | $(HEADS)/iciia_t_causal.json
	$(REFOCUS) export $(HEADS)/iciia_t_causal.safetensors --personalise head --out $(@D)
$(BUNDLES)/upgrade/manifest.json: | $(HEADS)/iciia_t_causal.json
	$(REFOCUS) export $(HEADS)/iciia_t_causal.safetensors --personalise head --head-only --out $(@D)
$(TAPER)/seed-0/taper.json: | $(INSTALLED)
	$(REFOCUS) train taper $(TAPER) --set 'glyph_clients={train=40, validation=4, test=8}' --set bases=4 --set shards=domains \
		--set 'recipe.epochs=[2,1,1]'
$(BUNDLES)/bank/manifest.json: | $(TAPER)/seed-0/taper.json
	$(REFOCUS) export $(TAPER)/seed-0/taper.safetensors --out $(@D)
$(BUNDLES)/condensed/manifest.json: | $(BUNDLES)/bank/manifest.json
	$(REFOCUS) condense $(BUNDLES)/bank --task 'latin capital letter a,latin capital letter b,latin capital letter c' --out $(@D)
$(BUNDLES)/imagenet/manifest.json: $(DEFAULT)/build.py $(DEFAULT)/measured.json | $(INSTALLED)
	OMP_NUM_THREADS=1 $(BIN)/python $< --out $(@D) --to onnx:w8a8,onnx:fp32,executorch:fp32

# Begins anew each time: a fleet has no second try.
demo-pipeline: $(PIPELINE)
	rm -rf $(OUT)-pipeline
	$(BIN)/python -m examples.fleet --out $(OUT)-pipeline

# An APK with a bundle inside; BUNDLE=FOLDER names one of your own. RUNTIME=--runtime=FILE gives ONNX Runtime's Android
# archive; default: Maven's. See docs/android.md.
RUNTIME ?=
BUNDLE ?= $(DEFAULT)/bundle
demo-android: $(INSTALLED)
	$(BIN)/python android_demo/tools/build_apk.py --bundle $(BUNDLE) $(RUNTIME)
	$(BIN)/python android_demo/tools/audit_apk.py android_demo/build/refocus-demo.apk $(filter --without-runtime --abi=%,$(RUNTIME))

# Two files at a time, one thread each: two cores do two small things faster so than one after the other.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder --durations 15
test: $(INSTALLED)
	$(PYTEST) -m "not slow" --ignore tests/studies

test-slow: $(FLARE) $(PIPELINE) $(DOCS)
	$(PYTEST) -m "slow and not full" --ignore tests/studies

# Tests of the experiments in studies/, which are not installed; after a change there or in what they use.
test-studies: $(FLARE)
	$(PYTEST) -m "not full" tests/studies

# What tests of the slow suite stand for: every row of their tables, and longer ways. Before a release, and after a change there.
test-full: $(FLARE) $(PIPELINE) $(DOCS)
	$(PYTEST) -m full

# Hostile input, and SIGKILL at random moments. Both go on where they stopped, in runs/, and write docs/results and
# docs/robustness.md. AREA=bundles chooses one area, SEEDS=a:b or COUNT=n the cases, WORKERS=n the processes.
CHOSEN = $(if $(AREA),--area $(AREA)) $(if $(SEEDS),--seeds $(SEEDS)) $(if $(COUNT),--count $(COUNT)) $(if $(WORKERS),--workers $(WORKERS))
fuzz: $(INSTALLED)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.fuzz fuzz $(CHOSEN)

# Random native heads against a reference in numpy, under the address and undefined-behaviour sanitizers.
fuzz-native: $(INSTALLED)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.edge.runtimes.native_builds fuzz $(or $(COUNT),100000)

kills: $(INSTALLED)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.fuzz kills $(CHOSEN)

# Twelve networks as plain bundles; goes on where it stopped, in $(OUT)-compatibility. PHOTOS=folder, WEIGHTS=folder.
compatibility: $(INSTALLED)
	OMP_NUM_THREADS=1 $(BIN)/python -m studies plain-bundles --out $(OUT)-compatibility --photos $(PHOTOS) \
		$(if $(WEIGHTS),--weights $(WEIGHTS)) --document docs/results/compatibility.json --page docs/compatibility.md

# Pictures in docs/pictures: pages drawn by headless Chromium (Debian: apt install chromium chromium-driver).
pictures: demo demo-train
	cp $(OUT)/before-and-after.png docs/pictures/
	$(BIN)/python -m tests.browser $(OUT) $(OUT)-train

# Everything that needs an NVIDIA GPU, section by section, offline once installed; goes on where it stopped. DRY=--dry runs
# it small on a CPU. $(OUT)/measure-cuda.tar.gz is what to take home. On a machine whose environment has torch for its GPU
# already: python -m studies measure-cuda --out DIR.
measure-cuda: $(INSTALLED)
	$(BIN)/python -m studies measure-cuda --out $(OUT) $(DRY)

# The documentation site in site/, to be read from the disk or served; a broken link or anchor is an error.
docs: $(DOCS)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

# The tests of edge and benchmarks that need no torch, on PYTHON (3.10 or newer), in an environment of 360 MB.
device-test: $(DEVICE)/.installed
	$(DEVICE)/bin/python -m pip install --quiet $(PINNED) --editable '.[update,bench,test]'
	OMP_NUM_THREADS=1 $(DEVICE)/bin/python -m pytest --numprocesses 2 --dist loadfile -m "not slow" \
		tests/edge tests/benchmarks tests/test_default_bundle.py

# The fast suite with the newest versions of NEWEST that the bounds allow, whatever constraints.txt says.
NEWEST ?= torch onnxruntime<1.29 executorch
test-newest: $(INSTALLED)
	$(BIN)/python -m pip install --upgrade --upgrade-strategy only-if-needed $(foreach each,$(NEWEST),'$(each)')
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	$(MAKE) test

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m tests.style

clean:
	rm -rf $(VENV) $(OUT) $(OUT)-train $(OUT)-pipeline $(foreach name,run taper $(EXAMPLES),$(BUNDLES)/$(name)) site $(DEVICE)
