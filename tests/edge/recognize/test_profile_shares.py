"""Class shares on a device: in step with the profile whoever writes to it, never another person's, never in the way."""

from __future__ import annotations

import csv
import json
import shutil
import tarfile
from dataclasses import asdict, replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
from PIL import Image

from refocus.edge.bundle.load import load_bundle, write_manifest
from refocus.edge.bundle.manifest import SHARES_VERSION, ShareCard
from refocus.edge.history.feature_history import CAPACITY, FeatureHistory, RetentionPolicy
from refocus.edge.migration.dual_write_recognizer import DualWriteRecognizer
from refocus.edge.recognize.album import answer_album
from refocus.edge.recognize.check import check
from refocus.edge.recognize.class_shares import ShareSettings
from refocus.edge.recognize.explain import draw, explain
from refocus.edge.recognize.profile_shares import LabelSetError, settings_of
from refocus.edge.recognize.recognizer import Recognizer

FORMS = {"window": "window", "streaming": "streaming", "none": "personal"}


@pytest.fixture(scope="session")
def old(tmp_path_factory):
    """Small bundles and a profile, as release 0.1.0 wrote them."""
    folder = tmp_path_factory.mktemp("release-0.1.0")
    with tarfile.open(Path(__file__).parents[2] / "fixtures" / "0.1.0" / "files.tar.gz") as archive:
        archive.extractall(folder)  # our own file; the filter argument is not in every Python 3.10
    return folder


@pytest.fixture(scope="session")
def photos(old, tmp_path_factory):
    """Twelve photos: files, and their bytes."""
    folder, files = tmp_path_factory.mktemp("photos"), []
    for number in range(12):
        with Image.open(old / "photos" / f"{number % 8}.png") as image:
            turned = image.convert("RGB").rotate(90 * (number // 8))
            turned.putpixel((0, 0), (number, 0, 0))
            turned.save(folder / f"{number:02}.png")
        files.append(folder / f"{number:02}.png")
    return files


def variant(source, out, **changes):
    """A bundle that counts class shares, with other settings or, as ``labels``, other labels."""
    shutil.copytree(source, out)
    bundle = load_bundle(out)
    labels, rejection = changes.pop("labels", None), changes.pop("rejection", msgspec.UNSET)
    card = ShareCard(version=SHARES_VERSION, **asdict(replace(ShareSettings(), **changes)))
    heads = []
    for head in bundle.manifest.heads:
        how = msgspec.structs.replace(head.personalisation, shares=card)
        heads.append(
            msgspec.structs.replace(
                head,
                personalisation=how,
                labels=labels or head.labels,
                self_test=None if labels else head.self_test,
                rejection=rejection,
            )
        )
    return write_manifest(out, msgspec.structs.replace(bundle.manifest, schema_version=6, heads=tuple(heads)))


@pytest.fixture(scope="session")
def counting(old, tmp_path_factory):
    """By form of the head."""
    folder = tmp_path_factory.mktemp("counting")
    return {form: variant(old / "bundles" / name, folder / form) for form, name in FORMS.items()}


def answers(bundle, profile, files, remember=True, **more):
    with Recognizer(bundle, profile, threads=1, **more) as recognizer:
        return [recognizer.recognize(file.read_bytes(), str(file), remember) for file in files]


def assert_same(one, other):
    for first, second in zip(one, other, strict=True):
        np.testing.assert_allclose(first.logits, second.logits, atol=1e-5)
        assert first.labels == second.labels
        assert first.shared.estimate.photos == second.shared.estimate.photos


@pytest.fixture(params=FORMS)
def bundle(request, counting):
    return counting[request.param]


# ---- what they do to answers


def test_an_answer_counts_the_photos_before_it_alone(bundle, photos, tmp_path):
    found = answers(bundle, tmp_path / "p", photos)
    assert [answer.shared.estimate.photos for answer in found] == [*range(12)]
    assert (found[0].shared.moved, found[0].shared.trust) == pytest.approx((0, 0), abs=1e-12)
    assert found[-1].shared.moved > 0
    for answer in found:
        assert abs(answer.probabilities.sum() - 1) < 1e-5
        assert answer.labels[0] == bundle.manifest.heads[0].labels[int(answer.logits.argmax())]


def test_without_shares_every_answer_is_the_programs_to_the_bit(old, bundle, photos, tmp_path):
    name = FORMS[bundle.manifest.heads[0].personalisation.form]
    plain = answers(load_bundle(old / "bundles" / name), tmp_path / "plain", photos)
    without = answers(bundle, tmp_path / "without", photos, shares=False)
    counted = answers(bundle, tmp_path / "with", photos)
    for one, other, shared in zip(plain, without, counted, strict=True):
        np.testing.assert_array_equal(one.logits, other.logits)
        np.testing.assert_array_equal(one.logits, shared.shared.logits)
        assert (one.shared, other.shared, one.probabilities.tolist()) == (None, None, other.probabilities.tolist())
    with FeatureHistory(tmp_path / "without") as history:
        assert not history._file.read("select 1 from sqlite_master where name = 'likely'")


def test_the_self_test_asks_the_programs_alone(bundle):
    (found,) = check(bundle)
    assert (found.failures, found.photos) == ((), 8)


def test_replay_and_a_history_of_the_callers_answer_as_recognising_does(bundle, photos, tmp_path):
    with Recognizer(bundle, tmp_path / "p", threads=1) as recognizer:
        features = [recognizer.encode(file.read_bytes()) for file in photos]
        one_by_one = [recognizer.recognize(file.read_bytes()) for file in photos]
        assert_same(one_by_one, [*recognizer.replay(features)])
        again = [recognizer.answer(features[n], np.array(features)[:n]) for n in range(12)]
        assert_same(one_by_one, again)


def test_nobodys_photo_is_answered_with_nobodys_shares(bundle, photos):
    with Recognizer(bundle, None, threads=1) as recognizer:
        for file in photos[:3]:
            assert recognizer.recognize(file.read_bytes()).shared.estimate.photos == 0


# ---- restarts, other processes


def test_a_restart_reads_them_back_and_asks_the_classifier_nothing(bundle, photos, tmp_path):
    whole = answers(bundle, tmp_path / "whole", photos)
    answers(bundle, tmp_path / "p", photos[:8])
    with Recognizer(bundle, tmp_path / "p", threads=1) as recognizer:
        asked = []
        classify = recognizer._shares._classify
        recognizer._shares._classify = lambda feature: asked.append(1) or classify(feature)
        assert_same([recognizer.recognize(file.read_bytes()) for file in photos[8:]], whole[8:])
        assert not asked


def test_a_photo_that_comes_again_is_answered_as_the_first_time(bundle, photos, tmp_path):
    first = answers(bundle, tmp_path / "p", photos)
    assert_same(answers(bundle, tmp_path / "p", photos), first)
    assert_same(answers(bundle, tmp_path / "p", photos[::-1]), first[::-1])


def test_a_photo_that_is_not_remembered_does_not_count(bundle, photos, tmp_path):
    with Recognizer(bundle, tmp_path / "p", threads=1) as recognizer:
        for file in photos[:4]:
            answer = recognizer.recognize(file.read_bytes(), remember=False)
        assert answer.shared.estimate.photos == 0


def test_a_profile_that_lacks_them_is_filled_from_its_features_once(bundle, photos, tmp_path):
    """As one of release 0.1.0, or of a bundle that did not count."""
    whole = answers(bundle, tmp_path / "whole", photos)
    answers(bundle, tmp_path / "p", photos[:8], shares=False)
    assert_same(answers(bundle, tmp_path / "p", photos[8:]), whole[8:])
    with Recognizer(bundle, tmp_path / "p", threads=1) as recognizer:
        assert not recognizer.history.likely(recognizer.space, recognizer._shares.by, 3).missing


def test_a_profile_of_0_1_0_counts_all_its_photos_and_keeps_its_number(old, counting, photos, tmp_path):
    for file in (old / "profiles").glob("anna.history.sqlite3*"):
        shutil.copyfile(file, tmp_path / file.name)
    profile = tmp_path / "anna.history.sqlite3"
    with Recognizer(counting["window"], profile, threads=1) as recognizer:
        before = recognizer.history.count(recognizer.space)
        answer = recognizer.recognize(photos[0].read_bytes())
        assert answer.shared.estimate.photos == before > 0
        assert recognizer.history._file.read("pragma user_version") == [(3,)]


def test_what_another_process_stores_counts_and_what_it_erases_does_not(bundle, photos, tmp_path):
    whole = answers(bundle, tmp_path / "whole", photos)
    rest = answers(bundle, tmp_path / "rest", [*photos[:2], *photos[3:7]])
    with Recognizer(bundle, tmp_path / "p", threads=1) as one, Recognizer(bundle, tmp_path / "p", threads=1) as other:
        found = []
        for number, file in enumerate(photos[:6]):
            found.append((one, other)[number % 2].recognize(file.read_bytes()))
        assert_same(found, whole[:6])
        other.history.erase(photo=[*other.history.recall(other.space, 9, other.width).photos][2])
        assert_same([one.recognize(photos[6].read_bytes())], rest[-1:])


def test_a_damaged_row_is_computed_again(counting, photos, tmp_path):
    whole = answers(counting["none"], tmp_path / "whole", photos)
    answers(counting["none"], tmp_path / "p", photos[:8])
    with FeatureHistory(tmp_path / "p") as history:
        history._file.write(lambda database: database.execute("update likely set seal = x'00' where slot % 2"))
    assert_same(answers(counting["none"], tmp_path / "p", photos[8:]), whole[8:])


def test_evicted_photos_no_longer_count(counting, photos, tmp_path):
    with Recognizer(counting["none"], tmp_path / "p", threads=1, keeping=RetentionPolicy(4)) as recognizer:
        found = [recognizer.recognize(file.read_bytes()).shared.estimate.photos for file in photos]
        assert found == [0, 1, 2, 3, *[4] * 8]
        assert not recognizer.history.likely(recognizer.space, recognizer._shares.by, 3).missing


def test_a_bundle_that_counts_keeps_as_many_photos_as_it_counts(old, counting, tmp_path):
    with Recognizer(counting["none"], tmp_path / "p", threads=1) as recognizer:
        assert recognizer.history.capacity == recognizer.capacity == 4096
    with Recognizer(counting["none"], tmp_path / "p", threads=1, shares=False) as recognizer:
        assert recognizer.history.capacity == recognizer.capacity == 4096
    with Recognizer(load_bundle(old / "bundles" / "personal"), tmp_path / "p", threads=1) as recognizer:
        assert recognizer.history.capacity == recognizer.capacity == CAPACITY
    with Recognizer(counting["none"], tmp_path / "p", threads=1, keeping=RetentionPolicy(300)) as recognizer:
        assert recognizer.history.capacity == 300


def test_a_long_history_outlives_answers_that_count_nothing(old, counting, photos, tmp_path):
    """Of the same bundle, and of one without shares on the same encoder, as an older release."""
    with Recognizer(counting["none"], tmp_path / "p", threads=1) as recognizer:
        for number in range(300):
            feature = np.random.default_rng(number).normal(size=recognizer.width).astype(np.float32)
            recognizer.history.append(recognizer.space, f"photo{number}", feature)
        space = recognizer.space
    answers(counting["none"], tmp_path / "p", photos[:1], shares=False)
    with Recognizer(load_bundle(old / "bundles" / "personal"), tmp_path / "p", threads=1) as recognizer:
        assert recognizer.space == space
        for file in photos[1:]:
            recognizer.recognize(file)
        assert recognizer.history.count(space) == 301
    found = answers(counting["none"], tmp_path / "p", photos[:1], remember=False)
    assert found[0].shared.estimate.photos >= 289


def test_the_heads_of_one_bundle_keep_what_the_one_that_counts_most_needs(old, tmp_path):
    shutil.copytree(old / "bundles" / "window", tmp_path / "bundle")
    manifest = load_bundle(tmp_path / "bundle").manifest
    card = ShareCard(version=SHARES_VERSION, **asdict(ShareSettings(capacity=1000)))
    (head,) = manifest.heads
    counts = msgspec.structs.replace(head.personalisation, shares=card)
    heads = head, msgspec.structs.replace(head, name="counts", personalisation=counts)
    artifacts = [one for one in manifest.artifacts if one.role == "head"]
    also = tuple(msgspec.structs.replace(one, head="counts") for one in artifacts)
    manifest = msgspec.structs.replace(manifest, schema_version=6, heads=heads, artifacts=(*manifest.artifacts, *also))
    bundle = write_manifest(tmp_path / "bundle", manifest)
    for name in (head.name, "counts"):
        with Recognizer(bundle, tmp_path / "p", threads=1, head=name) as recognizer:
            assert recognizer.history.capacity == 1000


def test_a_disk_that_takes_nothing_more_stops_no_photo(counting, photos, tmp_path):
    answers(counting["none"], tmp_path / "p", photos[:4], shares=False)
    with Recognizer(counting["none"], tmp_path / "p", threads=1) as recognizer:
        database = recognizer.history._file._database
        database.execute(f"pragma max_page_count={database.execute('pragma page_count').fetchone()[0]}")
        answer = recognizer.recognize(photos[4].read_bytes())
        assert answer.shared.estimate.photos == 4
        assert "was not stored" in answer.notices[0]


# ---- other labels, other classifiers


def test_other_labels_are_one_clear_error_and_nothing_is_stored(old, counting, photos, tmp_path):
    other = variant(old / "bundles" / "window", tmp_path / "other", labels=("ant", "bee", "cow"))
    answers(counting["window"], tmp_path / "p", photos[:3])
    before = (tmp_path / "p").read_bytes()
    with pytest.raises(LabelSetError, match="3 labels .* this bundle has 3 labels .ant, bee, cow.*--no-shares"):
        Recognizer(other, tmp_path / "p", threads=1)
    assert (tmp_path / "p").read_bytes() == before
    assert len(answers(other, tmp_path / "p", photos[3:4], shares=False)) == 1
    with FeatureHistory(tmp_path / "p") as history:
        history.forget_likely()
    assert answers(other, tmp_path / "p", photos[4:5])[0].shared.estimate.photos == 4


def test_other_settings_of_the_classifier_are_counted_anew(old, counting, photos, tmp_path):
    warm = variant(old / "bundles" / "personal", tmp_path / "warm", temperature=3.0)
    whole = answers(warm, tmp_path / "whole", photos[:6])
    answers(counting["none"], tmp_path / "p", photos[:5])
    assert_same(answers(warm, tmp_path / "p", photos[5:6]), whole[5:])


def test_a_release_with_other_labels_does_not_stop_a_device(old, counting, photos, tmp_path):
    """What ``Serving`` does when it meets the error."""
    other = variant(old / "bundles" / "window", tmp_path / "other", labels=("ant", "bee", "cow"))
    answers(counting["window"], tmp_path / "p", photos[:3])
    with Recognizer(other, None, threads=1) as recognizer:
        with pytest.raises(LabelSetError):
            recognizer.switch(tmp_path / "p")
        with FeatureHistory(tmp_path / "p") as history:
            history.forget_likely(recognizer.space)
        recognizer.switch(tmp_path / "p")
        assert recognizer.recognize(photos[3].read_bytes()).shared.estimate.photos == 3


def test_a_moving_profile_counts_in_both_models(counting, photos, tmp_path):
    """The two bundles have different encoders; each counts all photos with its own classifier."""
    old_model, new_model = (Recognizer(counting[form], None, threads=1) for form in ("window", "none"))
    if old_model.space == new_model.space:
        pytest.skip("these two bundles share an encoder")
    answers(counting["window"], tmp_path / "p", photos[:4])
    with DualWriteRecognizer(old_model, new_model, tmp_path / "p") as moving:
        moving.migration.start()
        for file in photos[4:8]:
            moving.recognize(file.read_bytes(), str(file))
        moving.migration.step()
        moving.migration.switch()
        counted = [moving.recognize(file.read_bytes(), str(file)).shared.estimate.photos for file in photos[8:]]
    assert counted == [8, 9, 10, 11]
    for model in (old_model, new_model):
        model.close()


@pytest.mark.parametrize("originals", [True, False])
def test_a_model_that_counts_is_not_warm_without_photos(originals, old, counting, photos, tmp_path):
    """Its head looks back on none, but its shares do."""
    shutil.copytree(photos[0].parent, tmp_path / "photos")
    seen = [tmp_path / "photos" / file.name for file in photos]
    answers(counting["window"], tmp_path / "p", seen[:6])
    if not originals:
        shutil.rmtree(tmp_path / "photos")
    few = variant(old / "bundles" / "personal", tmp_path / "few", half_life=3.0, strength=2.5)
    with DualWriteRecognizer(Recognizer(counting["window"]), Recognizer(few), tmp_path / "p") as moving:
        moving.migration.start()
        assert moving.migration.status().enough == 3
        while moving.migration.status().stage == "warming" and moving.migration.step(photos=1):
            pass
        for number, file in enumerate(photos[6:9] if not originals else ()):
            found = moving.migration.status()
            assert (found.stage, found.new) == ("warming", number)
            moving.recognize(file, str(file))
            moving.migration.step()
        found = moving.migration.status()
        assert found.stage == "switched"
        assert found.new >= 3


def test_what_a_model_that_counts_looks_back_on_is_never_more_than_it_keeps(old, counting, tmp_path):
    for keeping, wanted in ((RetentionPolicy(), 46), (RetentionPolicy(20), 20)):
        with Recognizer(counting["none"], threads=1, keeping=keeping) as recognizer:
            assert (recognizer.window, recognizer.looks_back) == (0, wanted)
    few = variant(old / "bundles" / "personal", tmp_path / "few", strength=1e9, capacity=8)
    with Recognizer(few, threads=1) as recognizer:
        assert recognizer.looks_back == 8
    with Recognizer(counting["none"], threads=1, shares=False) as recognizer:
        assert recognizer.looks_back == 0


def test_photos_that_are_filled_in_at_older_places_do_not_count_as_the_newest(counting, photos, tmp_path):
    answers(counting["window"], tmp_path / "p", photos[:5])
    old_model, new_model = (Recognizer(counting[form], None, threads=1) for form in ("window", "none"))
    assert old_model.space != new_model.space
    with DualWriteRecognizer(old_model, new_model, tmp_path / "p") as moving:
        moving.migration.start()
        moving.migration.switch()
        for file in photos[5:9]:
            assert moving.recognize(file.read_bytes(), str(file)).shared
        while moving.migration.step(photos=2):
            live = [moving.recognize(file.read_bytes(), remember=False) for file in photos[9:]]
            fresh = [answers(counting["none"], tmp_path / "p", [file], remember=False)[0] for file in photos[9:]]
            for one, other in zip(live, fresh, strict=True):
                np.testing.assert_allclose(one.logits, other.logits, atol=1e-6)
                np.testing.assert_allclose(*(found.shared.estimate.weights for found in (one, other)), atol=1e-6)
        assert live[0].shared.estimate.photos == 9
    for model in (old_model, new_model):
        model.close()


# ---- albums, explanations


def album(recognizer, files, out, **more):
    answer_album(recognizer, files, out, order="name", **more)
    return list(csv.reader(out.read_text().splitlines()))[1:]


def test_an_album_is_answered_as_its_photos_one_by_one(counting, photos, tmp_path):
    for form in ("none", "streaming"):
        one_by_one = answers(counting[form], tmp_path / form, photos)
        with Recognizer(counting[form], None, threads=1) as recognizer:
            rows = album(recognizer, photos, tmp_path / f"{form}.csv")
        for row, answer in zip(rows, one_by_one, strict=True):
            assert row[1] == answer.labels[0]
            assert abs(float(row[2]) - answer.confidence) < 2e-4


def test_an_album_counts_the_profiles_photos_and_is_remembered_with_its_classes(counting, photos, tmp_path):
    one_by_one = answers(counting["none"], tmp_path / "whole", photos)
    answers(counting["none"], tmp_path / "p", photos[:5])
    with Recognizer(counting["none"], tmp_path / "p", threads=1) as recognizer:
        rows = album(recognizer, photos[5:], tmp_path / "out.csv", remember=True)
        assert not recognizer.history.likely(recognizer.space, recognizer._shares.by, 3).missing
        again = album(recognizer, photos[5:], tmp_path / "again.csv")
    assert [row[1] for row in rows] == [answer.labels[0] for answer in one_by_one[5:]]
    assert rows == again, "photos of the album count once, though they are in the profile by now"


@pytest.mark.parametrize("first", [slice(5, 9), slice(0, 9)], ids=["gained", "lost"])
def test_a_photo_that_an_album_gained_or_lost_since_it_was_stopped_counts_once(counting, photos, tmp_path, first):
    class Stop(Exception):
        pass

    def stop(items, what, total):
        for number, item in enumerate(items):
            if (what, number) == ("answering", 2):
                raise Stop
            yield item

    answers(counting["none"], tmp_path / "p", photos[:5])
    with Recognizer(counting["none"], tmp_path / "p", threads=1) as recognizer:
        with pytest.raises(Stop):
            answer_album(recognizer, photos[first], tmp_path / "out.csv", order="name", track=stop)
        resumed = answer_album(recognizer, photos[3:], tmp_path / "out.csv", order="name")
        fresh = answer_album(recognizer, photos[3:], tmp_path / "fresh.csv", order="name")
    assert resumed.rows == fresh.rows
    assert resumed.photographs == fresh.photographs


def test_a_copy_in_an_album_never_meets_itself(counting, photos, tmp_path):
    copy = tmp_path / "99.png"
    shutil.copyfile(photos[3], copy)
    for form in FORMS:
        with Recognizer(counting[form], None, threads=1) as recognizer:
            rows = album(recognizer, [*photos[:6], copy], tmp_path / f"{form}.csv")
        if form == "window":
            assert rows[3][1]
            assert rows[6][1]
        else:
            assert rows[3][1:] == rows[6][1:]


def test_an_explanation_says_what_is_photographed_and_what_came_of_it(bundle, photos, tmp_path):
    *_, answer = answers(bundle, tmp_path / "p", photos)
    labels = bundle.manifest.heads[0].labels
    explained = explain(answer, labels, "photo", top=2)
    shares = explained.shares
    assert (shares.photos, shares.moved) == (11, answer.shared.moved)
    found = answer.shared.estimate.shares  # all photos are taken for one class
    assert shares.photographs == ((labels[found.argmax()], found.max()),)
    assert json.loads(json.dumps(explained.as_dict()))["shares"]["without"][0][0] == shares.without[0][0]
    assert any("what you photograph, by 11 photos" in line for line in explained.lines())
    without = answers(bundle, tmp_path / "without", photos[:1], shares=False)[0]
    assert explain(without, labels, "photo").shares is None


@pytest.mark.parametrize("form", FORMS)
def test_numbers_that_are_displayed_are_means_of_the_answers_with_and_without_history(form, old, photos, tmp_path):
    bundle = variant(old / "bundles" / FORMS[form], tmp_path / "bundle", temperature=2.0)
    *_, answer = answers(bundle, tmp_path / "p", photos)
    labels = bundle.manifest.heads[0].labels
    with_history, alone = dict(answer.top(99)), dict(explain(answer, labels, "photo", top=99).plain)
    shown = answer.displayed(99)
    assert [one.label for one in shown] == [*with_history]
    for label, confidence, probability in shown:
        assert probability == with_history[label]
        assert confidence == pytest.approx((with_history[label] + alone[label]) / 2)
    assert answer.confidence == shown[0].confidence != shown[0].probability


@pytest.mark.parametrize("form", FORMS)
def test_an_answer_without_a_history_explains_no_history(form, old, photos, tmp_path):
    bundle = variant(old / "bundles" / FORMS[form], tmp_path / "bundle", temperature=2.0)
    first, second = answers(bundle, tmp_path / "p", photos[:2])
    labels = bundle.manifest.heads[0].labels
    assert explain(first, labels, "photo").lines() == ["  no history: the photo alone decided"]
    explained = explain(second, labels, "photo")
    assert any("what you photograph, by 1 photo: " in line for line in explained.lines())
    assert any("attended to" in line for line in explained.lines()) == (form != "none")
    widths = [draw([explain(answer, labels, "photo")]).width for answer in (first, second)]
    assert (widths[0] < widths[1]) == (form != "none")
    # Every photo is a guess: none votes, and all shares stay equal.
    unknown = variant(old / "bundles" / FORMS[form], tmp_path / "unknown", rejection=1000.0)
    *_, last = answers(unknown, tmp_path / "q", photos[:3])
    explained = explain(last, labels, "photo")
    assert (explained.shares.photos, explained.shares.photographs) == (2, ())
    assert not any("what you photograph" in line for line in explained.lines())


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_an_answer_without_shares_or_history_is_calibrated_as_the_one_with_them(form, gated, old, photos, tmp_path):
    bundle = variant(old / "bundles" / FORMS[form], tmp_path / "bundle", temperature=2.0, gated=gated)
    first, *_, last = answers(bundle, tmp_path / "p", photos)
    labels = bundle.manifest.heads[0].labels
    empty = explain(first, labels, "photo")
    for alone in (empty.plain, empty.shares.without, *([empty.with_history] if form == "none" else [])):
        assert [label for label, _ in alone] == [shown.label for shown in empty.delivered]
        np.testing.assert_allclose([p for _, p in alone], [shown.confidence for shown in empty.delivered], atol=1e-5)
    assert first.shared.moved < 1e-5
    without, delivered = (dict(explain(last, labels, "photo", top=99).shares.without), dict(last.top(99)))
    moved = sum(abs(delivered[label] - without[label]) for label in labels) / 2
    assert last.shared.moved == pytest.approx(moved, abs=1e-5)
    assert moved > 1e-3
    with Recognizer(bundle, None, threads=1) as recognizer:
        (row,) = answer_album(recognizer, photos[:1], tmp_path / "album.json").rows
    assert (row.alone, row.moved) == (tuple(shown[:2] for shown in row.answer), 0)


def test_the_card_states_every_setting(counting):
    card = counting["none"].manifest.heads[0].personalisation.shares
    assert settings_of(card) == ShareSettings()
    assert set(asdict(ShareSettings())) == {*card.__struct_fields__} - {"version", "strengths", "half_lives", "revisit"}
