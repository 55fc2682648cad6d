// Reads a Refocus bundle, and was written from docs/formats/ alone: README.md, bundle.md and native-head.md.
//
//   c++ -std=c++17 -O2 -o bundle_reader examples/bundle_reader.cpp
//   ./bundle_reader BUNDLE                        verifies everything and lists artifacts, labels and tensors
//   ./bundle_reader BUNDLE --numbers FILE TENSOR  prints the numbers of one tensor of a tensor file, one a line
//   ./bundle_reader --tensors FILE                lists a tensor file outside of a bundle
//
// Exit status: 0, or 1 with one line on standard error. It needs the standard library of C++17 alone. Of the parts that a
// reader may skip it reads none: class shares, personal tensors, banks and what is informative.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <map>
#include <regex>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

namespace fs = std::filesystem;
using std::int64_t;
using std::string;
using std::uint32_t;
using std::uint64_t;
using std::uint8_t;
using std::vector;

struct Refused : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// ---- SHA-256 (FIPS 180-4)

class Sha256 {
  public:
    void add(const void *data, size_t size) {
        const uint8_t *bytes = static_cast<const uint8_t *>(data);
        total += size;
        for (size_t i = 0; i < size; ++i) {
            block[filled++] = bytes[i];
            if (filled == 64) compress(), filled = 0;
        }
    }
    string digest() {
        const uint64_t bits = total * 8;
        const uint8_t one = 0x80, zero = 0;
        add(&one, 1);
        while (filled != 56) add(&zero, 1);
        for (int i = 7; i >= 0; --i) {
            const uint8_t byte = uint8_t(bits >> (8 * i));
            add(&byte, 1);
        }
        char text[65];
        for (int i = 0; i < 8; ++i) std::snprintf(text + 8 * i, 9, "%08x", unsigned(state[i]));
        return text;
    }

  private:
    static uint32_t rotated(uint32_t x, int n) { return (x >> n) | (x << (32 - n)); }
    // The first 32 bits of the fractional parts of the roots of the first 64 primes.
    static const uint32_t *constants() {
        static uint32_t k[64];
        static bool made = false;
        for (int n = 2, i = 0; !made && i < 64; ++n) {
            bool prime = true;
            for (int d = 2; d * d <= n; ++d) prime = prime && n % d;
            if (!prime) continue;
            const long double root = std::cbrt(static_cast<long double>(n));
            k[i++] = uint32_t((root - std::floor(root)) * 4294967296.0L);
        }
        made = true;
        return k;
    }
    void compress() {
        const uint32_t *k = constants();
        uint32_t w[64], s[8];
        for (int i = 0; i < 16; ++i)
            w[i] = uint32_t(block[4 * i]) << 24 | uint32_t(block[4 * i + 1]) << 16 | uint32_t(block[4 * i + 2]) << 8 |
                   block[4 * i + 3];
        for (int i = 16; i < 64; ++i) {
            const uint32_t a = w[i - 15], b = w[i - 2];
            w[i] = w[i - 16] + (rotated(a, 7) ^ rotated(a, 18) ^ (a >> 3)) + w[i - 7] +
                   (rotated(b, 17) ^ rotated(b, 19) ^ (b >> 10));
        }
        std::copy(state, state + 8, s);
        for (int i = 0; i < 64; ++i) {
            const uint32_t t1 = s[7] + (rotated(s[4], 6) ^ rotated(s[4], 11) ^ rotated(s[4], 25)) +
                                ((s[4] & s[5]) ^ (~s[4] & s[6])) + k[i] + w[i];
            const uint32_t t2 = (rotated(s[0], 2) ^ rotated(s[0], 13) ^ rotated(s[0], 22)) +
                                ((s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]));
            std::copy_backward(s, s + 7, s + 8);
            s[4] += t1;
            s[0] = t1 + t2;
        }
        for (int i = 0; i < 8; ++i) state[i] += s[i];
    }
    uint32_t state[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    uint8_t block[64];
    size_t filled = 0;
    uint64_t total = 0;
};

// ---- JSON (README.md, Conventions)

struct Value {
    enum Kind { Null, Boolean, Whole, Real, Text, Array, Object } kind = Null;
    bool boolean = false;
    int64_t whole = 0;
    double real = 0;
    string text;
    vector<Value> items;
    vector<std::pair<string, Value>> members;

    const Value *find(const string &name) const {
        for (const auto &member : members)
            if (member.first == name) return &member.second;
        return nullptr;
    }
};

class Json {
  public:
    static Value parse(const string &content, const string &where) {
        Json json(content, where);
        json.check_utf8();
        Value value = json.value(0);
        json.space();
        if (json.at != content.size()) json.fail("something follows the value");
        return value;
    }

  private:
    Json(const string &content, const string &where) : content(content), where(where) {}

    [[noreturn]] void fail(const string &why) const {
        throw Refused(where + " is not JSON: " + why + " at byte " + std::to_string(at));
    }
    int peek() const { return at < content.size() ? uint8_t(content[at]) : -1; }
    void space() {
        while (peek() == ' ' || peek() == '\t' || peek() == '\n' || peek() == '\r') ++at;
    }
    void expect(char wanted) {
        if (peek() != uint8_t(wanted)) fail(string("expected '") + wanted + "'");
        ++at;
    }
    void check_utf8() {
        for (at = 0; at < content.size();) {
            const int first = peek();
            const int more = first < 0x80 ? 0 : first >= 0xc2 && first < 0xe0 ? 1 : first >= 0xe0 && first < 0xf0 ? 2
                             : first >= 0xf0 && first < 0xf5                  ? 3
                                                                              : -1;
            if (more < 0 || at + size_t(more) >= content.size()) fail("not UTF-8");
            uint32_t code = more == 0 ? uint32_t(first) : uint32_t(first) & (0x3fu >> more);
            for (int i = 1; i <= more; ++i) {
                const uint8_t next = uint8_t(content[at + size_t(i)]);
                if ((next & 0xc0) != 0x80) fail("not UTF-8");
                code = code << 6 | (next & 0x3f);
            }
            if ((more == 2 && code < 0x800) || (more == 3 && (code < 0x10000 || code > 0x10ffff)) ||
                (code >= 0xd800 && code < 0xe000))
                fail("not UTF-8");
            at += size_t(more) + 1;
        }
        at = 0;
    }
    Value value(int depth) {
        if (depth > 64) fail("nested too deeply");
        space();
        Value found;
        switch (peek()) {
            case '{': return object(depth);
            case '[': return array(depth);
            case '"': found.kind = Value::Text; found.text = text(); return found;
            case 't': word("true"); found.kind = Value::Boolean; found.boolean = true; return found;
            case 'f': word("false"); found.kind = Value::Boolean; return found;
            case 'n': word("null"); return found;
            default: return number();
        }
    }
    void word(const char *wanted) {
        if (content.compare(at, std::strlen(wanted), wanted) != 0) fail("expected a value");
        at += std::strlen(wanted);
    }
    Value object(int depth) {
        Value found;
        found.kind = Value::Object;
        std::set<string> names;
        expect('{');
        space();
        if (peek() == '}') return ++at, found;
        while (true) {
            space();
            const string name = text();
            if (!names.insert(name).second) fail("the member '" + name + "' comes twice");
            space();
            expect(':');
            found.members.emplace_back(name, value(depth + 1));
            space();
            if (peek() == '}') return ++at, found;
            expect(',');
        }
    }
    Value array(int depth) {
        Value found;
        found.kind = Value::Array;
        expect('[');
        space();
        if (peek() == ']') return ++at, found;
        while (true) {
            found.items.push_back(value(depth + 1));
            space();
            if (peek() == ']') return ++at, found;
            expect(',');
        }
    }
    size_t digits() {
        const size_t first = at;
        while (peek() >= '0' && peek() <= '9') ++at;
        return at - first;
    }
    Value number() {
        const size_t first = at;
        bool whole = true;
        if (peek() == '-') ++at;
        if (peek() == '0') ++at;
        else if (!digits()) fail("expected a value");
        if (peek() == '.') {
            whole = false;
            ++at;
            if (!digits()) fail("expected digits");
        }
        if (peek() == 'e' || peek() == 'E') {
            whole = false;
            ++at;
            if (peek() == '+' || peek() == '-') ++at;
            if (!digits()) fail("expected digits");
        }
        const string said = content.substr(first, at - first);
        Value found;
        found.kind = Value::Real;
        found.real = std::strtod(said.c_str(), nullptr);
        if (!std::isfinite(found.real)) fail("a number is too large");
        errno = 0;
        const long long exact = std::strtoll(said.c_str(), nullptr, 10);
        if (whole && errno != ERANGE) found.kind = Value::Whole, found.whole = exact;
        return found;
    }
    uint32_t four() {
        uint32_t code = 0;
        for (int i = 0; i < 4; ++i, ++at) {
            const int c = peek();
            const int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10
                              : c >= 'A' && c <= 'F'                               ? c - 'A' + 10
                                                                                   : -1;
            if (digit < 0) fail("expected four hexadecimal digits");
            code = code * 16 + uint32_t(digit);
        }
        return code;
    }
    string text() {
        string found;
        expect('"');
        while (peek() != '"') {
            const int c = peek();
            if (c < 0x20) fail("a string does not end, or holds a control character");
            ++at;
            if (c != '\\') {
                found += char(c);
                continue;
            }
            const int escape = peek();
            ++at;
            const char *known = std::strchr("\"\"\\\\//b\bf\fn\nr\rt\t", escape);
            if (escape == 'u') append(found, whole_character());
            else if (escape > 0x20 && known) found += known[1];
            else fail("an unknown escape");
        }
        ++at;
        return found;
    }
    uint32_t whole_character() {
        const uint32_t code = four();
        if (code < 0xd800 || code >= 0xe000) return code;
        if (code >= 0xdc00 || content.compare(at, 2, "\\u") != 0) fail("half of a surrogate pair");
        at += 2;
        const uint32_t low = four();
        if (low < 0xdc00 || low >= 0xe000) fail("half of a surrogate pair");
        return 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
    }
    static void append(string &to, uint32_t code) {
        if (code < 0x80) to += char(code);
        else if (code < 0x800) to += char(0xc0 | code >> 6), to += char(0x80 | (code & 0x3f));
        else if (code < 0x10000)
            to += char(0xe0 | code >> 12), to += char(0x80 | (code >> 6 & 0x3f)), to += char(0x80 | (code & 0x3f));
        else
            to += char(0xf0 | code >> 18), to += char(0x80 | (code >> 12 & 0x3f)),
                to += char(0x80 | (code >> 6 & 0x3f)), to += char(0x80 | (code & 0x3f));
    }

    const string &content;
    const string &where;
    size_t at = 0;
};

// ---- fields: each function refuses a value of another type, and says where it stands

[[noreturn]] void refuse(const string &where, const string &why) { throw Refused(where + ": " + why); }

const Value &object(const Value &value, const string &where) {
    if (value.kind != Value::Object) refuse(where, "expected an object");
    return value;
}
const Value &array(const Value &value, const string &where) {
    if (value.kind != Value::Array) refuse(where, "expected an array");
    return value;
}
const string &text(const Value &value, const string &where) {
    if (value.kind != Value::Text) refuse(where, "expected a string");
    return value.text;
}
int64_t whole(const Value &value, const string &where, int64_t least, int64_t most) {
    if (value.kind != Value::Whole) refuse(where, "expected a whole number");
    if (value.whole < least || value.whole > most)
        refuse(where, std::to_string(value.whole) + " is not from " + std::to_string(least) + " to " + std::to_string(most));
    return value.whole;
}
double number(const Value &value, const string &where) {
    if (value.kind != Value::Whole && value.kind != Value::Real) refuse(where, "expected a number");
    return value.real;
}
const string &one_of(const Value &value, const string &where, const std::set<string> &known) {
    if (!known.count(text(value, where))) refuse(where, "'" + value.text + "' is not known here");
    return value.text;
}
const string &sha256(const Value &value, const string &where) {
    const string &said = text(value, where);
    if (said.size() != 64 || said.find_first_not_of("0123456789abcdef") != string::npos)
        refuse(where, "expected 64 lowercase hexadecimal digits");
    return said;
}

// An object whose members are all known; those that are required are asked for with `need`.
class Fields {
  public:
    Fields(const Value &value, const string &where, const std::set<string> &known) : value(object(value, where)), where(where) {
        for (const auto &member : value.members)
            if (!known.count(member.first))
                refuse(where, "unknown field '" + member.first + "'; a newer Refocus may have written it");
    }
    const Value &need(const string &name) const {
        const Value *found = value.find(name);
        if (!found) refuse(where, "the field '" + name + "' is missing");
        return *found;
    }
    const Value *given(const string &name) const { return value.find(name); }
    // For fields that may be null.
    const Value *set(const string &name) const {
        const Value *found = value.find(name);
        return found && found->kind != Value::Null ? found : nullptr;
    }
    string at(const string &name) const { return where + "." + name; }
    string text_or(const string &name, const string &other) const {
        const Value *found = given(name);
        return found ? text(*found, at(name)) : other;
    }
    string one_or(const string &name, const string &other, const std::set<string> &known) const {
        const Value *found = given(name);
        return found ? one_of(*found, at(name), known) : other;
    }

  private:
    const Value &value;
    string where;
};

// ---- what a manifest says

constexpr int64_t MIB = 1 << 20, GIB = int64_t(1) << 30, MOST_NUMBERS = int64_t(1) << 26, LARGEST_AXIS = 2147483647;

struct Listed {
    string file, digest;
    int64_t size = 0;
};
struct Axis {
    bool is_free = false;
    int64_t size = 1;
    string name;
};
struct Tensor {
    string name, type;
    vector<Axis> shape;
};
struct Artifact {
    string role, runtime, precision, head, space;
    Listed file;
    vector<Tensor> inputs, outputs;
    vector<string> accepts;
    bool has_defaults = false;
    Listed defaults;
};
struct State {
    string name, source, update;
    vector<int64_t> shape;
    int64_t axis = 0;
};
struct Head {
    string name, form, carrier, method, gate;
    vector<string> labels;
    int64_t window = 0;
    vector<State> states;
    vector<Listed> files;  // classifier and taught_by
};
struct Manifest {
    int64_t version = 0, shorter = 0, crop = 0, frames = 0;  // frames: of a clip; 0: the encoder takes photos
    string name, filter, decoder;
    vector<Artifact> artifacts;
    vector<Head> heads;
    vector<Listed> photos;
    bool has_bank = false, has_task = false;
    Listed bank;
};

void check_path(const string &path, const string &where) {
    const char *allowed = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-/";
    if (path.empty() || path.size() > 200 || path.find_first_not_of(allowed) != string::npos)
        refuse(where, "'" + path.substr(0, 80) + "' is not a path of 1 to 200 plain characters");
    for (size_t first = 0; first <= path.size();) {
        const size_t end = std::min(path.find('/', first), path.size());
        const string part = path.substr(first, end - first);
        if (part.empty() || part == "." || part == "..") refuse(where, "'" + path.substr(0, 80) + "' leads elsewhere");
        first = end + 1;
    }
}

Listed listed(const Fields &fields, const string &where, int64_t most, int64_t &total) {
    Listed found;
    found.file = text(fields.need("file"), where + ".file");
    check_path(found.file, where + ".file");
    found.digest = sha256(fields.need("sha256"), where + ".sha256");
    found.size = whole(fields.need("size_bytes"), where + ".size_bytes", 0, most);
    total += found.size;
    if (total > 64 * GIB) refuse(where, "all files together are larger than 64 GiB");
    return found;
}
Listed listed(const Value &value, const string &where, int64_t most, int64_t &total) {
    return listed(Fields(value, where, {"file", "sha256", "size_bytes"}), where, most, total);
}

int64_t product(const vector<int64_t> &shape, const string &where, int64_t most) {
    int64_t found = 1;
    for (const int64_t size : shape)
        if (size == 0) return 0;
    for (const int64_t size : shape) {
        if (found > most / size) refuse(where, "more than " + std::to_string(most) + " numbers");
        found *= size;
    }
    return found;
}

vector<Tensor> tensors(const Value &value, const string &where, int64_t &numbers) {
    vector<Tensor> found;
    std::set<string> names;
    for (const Value &item : array(value, where).items) {
        const string here = where + "[" + std::to_string(found.size()) + "]";
        const Fields fields(item, here, {"name", "dtype", "shape"});
        Tensor tensor{text(fields.need("name"), fields.at("name")),
                      one_of(fields.need("dtype"), fields.at("dtype"), {"float32", "int64"}), {}};
        if (!names.insert(tensor.name).second) refuse(here, "the name '" + tensor.name + "' comes twice");
        vector<int64_t> sizes;
        for (const Value &axis : array(fields.need("shape"), fields.at("shape")).items) {
            Axis one;
            if (axis.kind == Value::Text) one.is_free = true, one.name = axis.text;
            else one.size = whole(axis, fields.at("shape"), 0, LARGEST_AXIS);
            sizes.push_back(one.size);
            tensor.shape.push_back(one);
        }
        if (sizes.size() > 16) refuse(here, "more than 16 axes");
        numbers += product(sizes, here, MOST_NUMBERS);
        if (numbers > MOST_NUMBERS) refuse(where, "inputs and outputs have more than 67,108,864 numbers");
        found.push_back(tensor);
    }
    return found;
}

void read_preprocessing(const Value &value, Manifest &to) {
    const Fields fields(value, "preprocessing", {"resize_shorter", "crop", "mean", "std", "resize_filter", "decoder",
                                                 "apply_exif_orientation", "colour_order", "layout", "frames"});
    to.shorter = whole(fields.need("resize_shorter"), fields.at("resize_shorter"), 1, 8192);
    to.crop = whole(fields.need("crop"), fields.at("crop"), 1, to.shorter);
    for (const string name : {"mean", "std"}) {
        const Value &three = array(fields.need(name), fields.at(name));
        if (three.items.size() != 3) refuse(fields.at(name), "expected three numbers");
        for (const Value &item : three.items)
            if (number(item, fields.at(name)) <= 0 && name == "std") refuse(fields.at(name), "expected positive numbers");
    }
    to.filter = fields.one_or("resize_filter", "bicubic", {"bilinear", "bicubic", "lanczos"});
    to.decoder = fields.one_or("decoder", "pillow-full-size", {"pillow-full-size", "pillow-scaled"});
    const Value *exif = fields.given("apply_exif_orientation");
    if (exif && exif->kind != Value::Boolean) refuse(fields.at("apply_exif_orientation"), "expected a boolean");
    fields.one_or("colour_order", "RGB", {"RGB"});
    fields.one_or("layout", "NCHW", {"NCHW"});
    if (const Value *frames = fields.given("frames")) to.frames = whole(*frames, fields.at("frames"), 2, 1024);
}

Artifact read_artifact(const Value &value, const string &where, int64_t &total) {
    const Fields fields(value, where, {"role", "runtime", "precision", "file", "sha256", "size_bytes", "inputs", "outputs",
                                       "min_runtime_version", "producer", "head", "feature_space", "accepts", "defaults",
                                       "personal", "recipe", "calibration", "parts_bytes", "placement", "parity",
                                       "parity_note", "accuracy"});
    Artifact found;
    found.role = one_of(fields.need("role"), fields.at("role"), {"encoder", "head"});
    found.runtime = text(fields.need("runtime"), fields.at("runtime"));
    if (found.runtime == "native" && found.role != "head") refuse(where, "'native' runs heads alone");
    found.precision = one_of(fields.need("precision"), fields.at("precision"),
                             {"fp32", "fp16", "w8a8", "w8a16", "w16", "w8", "palette6", "int8"});
    found.file = listed(fields, where, 4 * GIB, total);
    int64_t numbers = 0;
    found.inputs = tensors(fields.need("inputs"), fields.at("inputs"), numbers);
    found.outputs = tensors(fields.need("outputs"), fields.at("outputs"), numbers);
    const string &version = text(fields.need("min_runtime_version"), fields.at("min_runtime_version"));
    static const std::regex versions("[0-9]{1,9}(\\.[0-9]{1,9}){0,5}[-+.a-zA-Z0-9]{0,40}");
    if (version.size() > 200 || !std::regex_match(version, versions))
        refuse(fields.at("min_runtime_version"), "expected a version, as 1.20");
    object(fields.need("producer"), fields.at("producer"));
    found.head = fields.text_or("head", "");
    if (const Value *space = fields.set("feature_space")) found.space = sha256(*space, fields.at("feature_space"));
    if (const Value *accepts = fields.given("accepts"))
        for (const Value &item : array(*accepts, fields.at("accepts")).items)
            found.accepts.push_back(sha256(item, fields.at("accepts")));
    if (const Value *defaults = fields.set("defaults")) {
        found.has_defaults = true;
        found.defaults = listed(*defaults, fields.at("defaults"), 256 * MIB, total);
    }
    const bool encoder = found.role == "encoder";
    if (encoder != found.head.empty()) refuse(where, "a head names its head, and an encoder none");
    if (encoder != !found.space.empty()) refuse(where, "an encoder has a feature space, and a head none");
    if (encoder != found.accepts.empty()) refuse(where, "a head accepts a feature space, and an encoder none");
    return found;
}

State read_state(const Value &value, const string &where, int64_t &numbers) {
    const Fields fields(value, where, {"name", "source", "dtype", "shape", "update", "axis"});
    State found;
    found.name = text(fields.need("name"), fields.at("name"));
    found.source = text(fields.need("source"), fields.at("source"));
    one_of(fields.need("dtype"), fields.at("dtype"), {"float32"});
    for (const Value &item : array(fields.need("shape"), fields.at("shape")).items)
        found.shape.push_back(whole(item, fields.at("shape"), 0, LARGEST_AXIS));
    if (found.shape.size() > 16) refuse(where, "more than 16 axes");
    numbers += product(found.shape, where, MOST_NUMBERS);
    if (numbers > MOST_NUMBERS) refuse(where, "the states have more than 67,108,864 numbers");
    found.update = one_of(fields.need("update"), fields.at("update"), {"append", "ring"});
    const Value *axis = fields.given("axis");
    const int64_t last = std::max<int64_t>(1, int64_t(found.shape.size())) - 1;
    found.axis = axis ? whole(*axis, fields.at("axis"), 0, last) : 0;
    return found;
}

void read_self_test(const Value &value, const string &where, size_t photos) {
    const Fields fields(value, where, {"answers", "tolerance"});
    const Value &answers = object(fields.need("answers"), fields.at("answers"));
    if (!answers.find("eager")) refuse(where, "the answers of 'eager' are missing");
    for (const auto &target : answers.members) {
        const string here = fields.at("answers") + "." + target.first;
        if (array(target.second, here).items.size() != photos) refuse(here, "expected an answer for each photo");
        for (const Value &item : target.second.items) {
            const Fields answer(item, here, {"label", "logit", "margin"});
            text(answer.need("label"), answer.at("label"));
            number(answer.need("logit"), answer.at("logit"));
            if (number(answer.need("margin"), answer.at("margin")) < 0) refuse(here, "a margin is below 0");
        }
    }
    for (const auto &precision : object(fields.need("tolerance"), fields.at("tolerance")).members)
        number(precision.second, fields.at("tolerance"));
}

Head read_head(const Value &value, const string &where, int64_t version, size_t photos, int64_t &total) {
    std::set<string> known = {"name",     "labels",     "personalisation", "state",       "self_test",
                              "training", "thresholds", "rejection",       "known_scores"};
    if (version == 6) known.insert({"classifier", "taught_by"});
    const Fields fields(value, where, known);
    Head found;
    found.name = text(fields.need("name"), fields.at("name"));
    static const std::regex names("[A-Za-z0-9][A-Za-z0-9._-]{0,63}");
    if (found.name.size() > 64 || !std::regex_match(found.name, names)) refuse(fields.at("name"), "not the name of a head");
    for (const Value &item : array(fields.need("labels"), fields.at("labels")).items)
        found.labels.push_back(text(item, fields.at("labels")));
    if (found.labels.empty()) refuse(fields.at("labels"), "expected at least one label");
    if (const Value *rejection = fields.given("rejection")) {
        const double least = number(*rejection, fields.at("rejection"));
        if (!(least >= -1000 && least <= 1000)) refuse(fields.at("rejection"), "expected -1000 to 1000");
    }
    if (const Value *scores = fields.given("known_scores")) {
        const auto &items = array(*scores, fields.at("known_scores")).items;
        double last = -1000;
        for (const Value &item : items) {
            const double score = number(item, fields.at("known_scores"));
            if (!(score >= last && score <= 1000)) refuse(fields.at("known_scores"), "expected ascending numbers from -1000 to 1000");
            last = score;
        }
        if (items.size() != 10 || !fields.given("rejection"))
            refuse(fields.at("known_scores"), "expected 10 numbers, and a rejection threshold");
    }
    if (const Value *thresholds = fields.given("thresholds")) {
        const auto &items = array(*thresholds, fields.at("thresholds")).items;
        if (items.size() != found.labels.size() || items.size() > 256) refuse(fields.at("thresholds"), "expected one for each label");
        for (const Value &item : items) {
            const double threshold = number(item, fields.at("thresholds"));
            if (!(threshold >= 0 && threshold <= 1)) refuse(fields.at("thresholds"), "expected numbers from 0 to 1");
        }
    }
    const Fields personal(fields.need("personalisation"), fields.at("personalisation"),
                          {"method", "window", "gate", "form", "carrier", "shares"});
    found.method = text(personal.need("method"), personal.at("method"));
    found.window = whole(personal.need("window"), personal.at("window"), 0, 1048576);
    found.gate = text(personal.need("gate"), personal.at("gate"));
    found.form = personal.one_or("form", "window", {"window", "streaming", "none"});
    found.carrier = personal.one_or("carrier", "none", {"none", "inputs", "weights", "whole"});
    int64_t numbers = 0;
    if (const Value *states = fields.given("state"))
        for (const Value &item : array(*states, fields.at("state")).items)
            found.states.push_back(read_state(item, fields.at("state"), numbers));
    if (const Value *test = fields.set("self_test")) read_self_test(*test, fields.at("self_test"), photos);
    for (const string name : {"classifier", "taught_by"})
        if (const Value *file = fields.set(name)) found.files.push_back(listed(*file, fields.at(name), 256 * MIB, total));
    if (const Value *training = fields.given("training")) object(*training, fields.at("training"));
    return found;
}

void read_task(const Value &value) {
    const Fields fields(value, "task", {"classes", "description", "domain", "mixers", "bank"});
    for (const Value &item : array(fields.need("classes"), "task.classes").items) text(item, "task.classes");
    text(fields.need("description"), "task.description");
    text(fields.need("domain"), "task.domain");
    for (const Value &row : array(fields.need("mixers"), "task.mixers").items)
        for (const Value &item : array(row, "task.mixers").items) number(item, "task.mixers");
    sha256(fields.need("bank"), "task.bank");
}

Manifest read_manifest(const string &content) {
    const Value value = object(Json::parse(content, "manifest.json"), "manifest.json");
    Manifest found;
    const Value *version = value.find("schema_version");  // before any other field
    if (!version) refuse("manifest.json", "the field 'schema_version' is missing");
    if (version->kind != Value::Whole || (version->whole != 5 && version->whole != 6))
        refuse("manifest.json", "has another schema_version than 5 and 6; another version of Refocus wrote it");
    found.version = version->whole;
    const Fields fields(value, "manifest", {"schema_version", "name", "preprocessing", "artifacts", "heads",
                                            "self_test_photos", "bank", "task"});
    found.name = text(fields.need("name"), "name");
    read_preprocessing(fields.need("preprocessing"), found);
    int64_t total = 0;
    for (const Value &item : array(fields.need("artifacts"), "artifacts").items)
        found.artifacts.push_back(read_artifact(item, "artifacts[" + std::to_string(found.artifacts.size()) + "]", total));
    if (found.artifacts.size() > 256) refuse("artifacts", "more than 256");
    if (const Value *photos = fields.given("self_test_photos"))
        for (const Value &item : array(*photos, "self_test_photos").items)
            found.photos.push_back(listed(item, "self_test_photos", 256 * MIB, total));
    if (found.photos.size() > 256) refuse("self_test_photos", "more than 256");
    for (const Value &item : array(fields.need("heads"), "heads").items) {
        const string where = "heads[" + std::to_string(found.heads.size()) + "]";
        found.heads.push_back(read_head(item, where, found.version, found.photos.size(), total));
    }
    if (found.heads.empty()) refuse("heads", "expected at least one");
    if (const Value *bank = fields.set("bank")) {
        const Fields of_bank(*bank, "bank", {"file", "sha256", "size_bytes", "bases", "mixers", "columns", "folds",
                                             "classifier", "domains", "text_encoder", "prompts", "weight_files",
                                             "self_improvement"});
        of_bank.one_or("self_improvement", "networks", {"networks", "shares", "generic"});
        found.has_bank = true;
        found.bank = listed(of_bank, "bank", 64 * GIB, total);
    }
    if (const Value *task = fields.set("task")) found.has_task = true, read_task(*task);
    return found;
}

// ---- tensor files

struct Stored {
    string type;
    vector<int64_t> shape;
    size_t begin = 0, end = 0;  // in the file
};
using TensorFile = std::map<string, Stored>;

size_t bytes_of(const string &type) { return type == "I64" ? 8 : type == "F32" ? 4 : type == "F16" ? 2 : 1; }

TensorFile read_tensors(const string &content, const string &where) {
    if (content.size() < 8) refuse(where, "too short for a tensor file");
    uint64_t length = 0;
    for (int i = 7; i >= 0; --i) length = length << 8 | uint8_t(content[size_t(i)]);
    if (length < 1 || length > MIB || length > content.size() - 8) refuse(where, "the header's length does not fit");
    const size_t first = 8 + size_t(length);
    const int64_t room = int64_t(content.size() - first);
    const Value header = object(Json::parse(content.substr(8, size_t(length)), where + ": the header"), where);
    TensorFile found;
    vector<std::pair<int64_t, int64_t>> places;
    for (const auto &member : header.members) {
        const string here = where + ": " + member.first;
        if (member.first == "__metadata__") {
            for (const auto &item : object(member.second, here).members) text(item.second, here);
            continue;
        }
        const Fields fields(member.second, here, {"dtype", "shape", "data_offsets"});
        Stored stored;
        stored.type = one_of(fields.need("dtype"), here, {"F32", "F16", "I64", "I8"});
        for (const Value &item : array(fields.need("shape"), here).items)
            stored.shape.push_back(whole(item, here, 0, INT64_MAX));
        if (stored.shape.size() > 32) refuse(here, "more than 32 axes");
        const Value &offsets = array(fields.need("data_offsets"), here);
        if (offsets.items.size() != 2) refuse(here, "expected two offsets");
        const int64_t begin = whole(offsets.items[0], here, 0, room), end = whole(offsets.items[1], here, begin, room);
        const int64_t size = int64_t(bytes_of(stored.type));
        if ((end - begin) % size || product(stored.shape, here, room) != (end - begin) / size)
            refuse(here, "the bytes do not fit the shape");
        stored.begin = first + size_t(begin);
        stored.end = first + size_t(end);
        if (stored.begin % size_t(size)) refuse(here, "not aligned");
        places.emplace_back(begin, end);
        found[member.first] = stored;
    }
    std::sort(places.begin(), places.end());
    int64_t reached = 0;
    for (const auto &place : places) {
        if (place.first != reached) refuse(where, "tensors overlap, or have a gap between them");
        reached = place.second;
    }
    if (reached != room) refuse(where, "bytes follow the last tensor");
    return found;
}

uint64_t little(const string &content, size_t at, size_t size) {
    uint64_t bits = 0;
    for (size_t i = size; i > 0; --i) bits = bits << 8 | uint8_t(content[at + i - 1]);
    return bits;
}

double half(uint32_t bits) {
    const int exponent = int(bits >> 10 & 0x1f);
    const double fraction = double(bits & 0x3ff) / 1024, sign = bits & 0x8000 ? -1 : 1;
    if (exponent == 31) return fraction > 0 ? std::nan("") : sign * HUGE_VAL;
    return sign * (exponent ? std::ldexp(1 + fraction, exponent - 15) : std::ldexp(fraction, -14));
}

void print_numbers(const string &content, const Stored &tensor) {
    const size_t size = bytes_of(tensor.type);
    for (size_t at = tensor.begin; at < tensor.end; at += size) {
        const uint64_t bits = little(content, at, size);
        if (tensor.type == "F32") {
            const uint32_t word = uint32_t(bits);
            float value;
            std::memcpy(&value, &word, 4);
            std::printf("%.9g\n", double(value));
        } else if (tensor.type == "F16") std::printf("%.9g\n", half(uint32_t(bits)));
        else if (tensor.type == "I64") std::printf("%lld\n", static_cast<long long>(bits));
        else std::printf("%d\n", int(static_cast<signed char>(bits)));
    }
}

// ---- files

string read_file(const fs::path &path, uint64_t most, const string &where) {
    std::error_code error;
    if (!fs::is_regular_file(fs::symlink_status(path, error))) refuse(where, "is missing, or not a regular file");
    if (fs::file_size(path, error) > most || error) refuse(where, "is larger than " + std::to_string(most) + " bytes");
    std::ifstream stream(path, std::ios::binary);
    string content((std::istreambuf_iterator<char>(stream)), std::istreambuf_iterator<char>());
    if (stream.bad() || !stream.is_open()) refuse(where, "cannot be read");
    return content;
}

std::pair<string, uint64_t> digest_of(const fs::path &path, const string &where) {
    std::ifstream stream(path, std::ios::binary);
    if (!stream) refuse(where, "cannot be read");
    Sha256 sha;
    uint64_t size = 0;
    vector<char> piece(1 << 20);
    while (stream) {
        stream.read(piece.data(), std::streamsize(piece.size()));
        sha.add(piece.data(), size_t(stream.gcount()));
        size += uint64_t(stream.gcount());
    }
    return {sha.digest(), size};
}

vector<string> parts_of(const string &path) {
    vector<string> found(1);
    for (const char c : path)
        if (c == '/') found.emplace_back();
        else found.back() += c;
    return found;
}

void collect(const fs::path &folder, const string &below, int depth, vector<string> &found, const string &where) {
    if (depth > 15) refuse(where, "folders are nested too deeply");
    for (const auto &entry : fs::directory_iterator(folder)) {
        const string name = below + entry.path().filename().string();
        check_path(name, where);
        const fs::file_status status = entry.symlink_status();
        if (fs::is_directory(status)) collect(entry.path(), name + "/", depth + 1, found, where);
        else if (fs::is_regular_file(status)) found.push_back(name);
        else refuse(where + "/" + name, "is neither a file nor a folder");
        if (found.size() > 4096) refuse(where, "more than 4096 files");
    }
}

std::pair<string, uint64_t> digest_of_folder(const fs::path &folder, const string &where) {
    vector<string> files;
    collect(folder, "", 0, files, where);
    std::sort(files.begin(), files.end(), [](const string &a, const string &b) { return parts_of(a) < parts_of(b); });
    Sha256 sha;
    uint64_t size = 0;
    for (const string &name : files) {
        const auto found = digest_of(folder / name, where + "/" + name);
        const string line = name + " " + found.first + "\n";
        sha.add(line.data(), line.size());
        size += found.second;
    }
    return {sha.digest(), size};
}

// Compares size and SHA-256; no part of the path below the bundle may be a link.
void verify(const fs::path &bundle, const Listed &listed, bool may_be_folder) {
    fs::path path = bundle;
    for (const string &part : parts_of(listed.file)) {
        path /= part;
        if (fs::is_symlink(fs::symlink_status(path))) refuse(listed.file, "is a link");
    }
    const bool folder = may_be_folder && fs::is_directory(path);
    if (!folder && !fs::is_regular_file(path)) refuse(listed.file, "is missing");
    if (!folder && fs::file_size(path) != uint64_t(listed.size))
        refuse(listed.file, "has " + std::to_string(fs::file_size(path)) + " bytes, and the manifest says " + std::to_string(listed.size));
    const auto found = folder ? digest_of_folder(path, listed.file) : digest_of(path, listed.file);
    if (found.second != uint64_t(listed.size))
        refuse(listed.file, "has " + std::to_string(found.second) + " bytes, and the manifest says " + std::to_string(listed.size));
    if (found.first != listed.digest) refuse(listed.file, "was changed: its SHA-256 is not the manifest's");
}

// The content of a listed file, which has been compared in memory: nothing else is used of it.
string verified(const fs::path &bundle, const Listed &listed) {
    verify(bundle, listed, false);
    const string content = read_file(bundle / listed.file, uint64_t(listed.size), listed.file);
    Sha256 sha;
    sha.add(content.data(), content.size());
    if (sha.digest() != listed.digest) refuse(listed.file, "was changed: its SHA-256 is not the manifest's");
    return content;
}

// ---- what must fit (bundle.md)

const Tensor *named(const vector<Tensor> &tensors, const string &name) {
    for (const Tensor &tensor : tensors)
        if (tensor.name == name) return &tensor;
    return nullptr;
}

// The tensor has that type and shape; -1 stands for any fixed size, -2 for a free size or 1.
const Tensor &has(const vector<Tensor> &tensors, const string &name, const string &type, const vector<int64_t> &shape,
                  const string &where) {
    const Tensor *found = named(tensors, name);
    if (!found) refuse(where, "the tensor '" + name + "' is missing");
    bool fits = found->type == type && found->shape.size() == shape.size();
    for (size_t i = 0; fits && i < shape.size(); ++i) {
        const Axis &axis = found->shape[i];
        if (shape[i] == -2) fits = axis.is_free || axis.size == 1;
        else fits = !axis.is_free && (shape[i] == -1 || axis.size == shape[i]);
    }
    if (!fits) refuse(where, "the tensor '" + name + "' has another type or shape than the manifest asks for");
    return *found;
}

void fit_encoder(const Artifact &artifact, const Manifest &manifest, const std::set<string> &defaults, const string &where) {
    bool takes_inputs = false;
    for (const Head &head : manifest.heads) takes_inputs = takes_inputs || head.carrier == "inputs";
    vector<int64_t> photo = {-2, 3, manifest.crop, manifest.crop};
    if (manifest.frames) photo.insert(photo.begin() + 1, manifest.frames);
    has(artifact.inputs, "photo", "float32", photo, where);
    for (const Tensor &input : artifact.inputs)
        if (input.name != "photo" && !defaults.count(input.name) && (!takes_inputs || input.type != "float32"))
            refuse(where, "the input '" + input.name + "' is unknown or not float32");
    has(artifact.outputs, "feature", "float32", {-2, -1}, where);
    if (artifact.outputs.size() != 1) refuse(where, "an encoder has one output");
}

void fit_head(const Artifact &artifact, const Head &head, const std::set<string> &defaults, const string &where) {
    const int64_t classes = int64_t(head.labels.size());
    std::set<string> inputs = {"feature"}, outputs = {"plain_logits", "calibrated_logits", "logits", "attention", "trust"};
    for (const string name : {"plain_logits", "calibrated_logits", "logits"})
        has(artifact.outputs, name, "float32", {1, classes}, where);
    has(artifact.outputs, "trust", "float32", {1}, where);
    const int64_t seen = has(artifact.outputs, "attention", "float32", {1, -1}, where).shape[1].size;
    const int64_t width = has(artifact.inputs, "feature", "float32", {head.form == "none" ? -2 : 1, -1}, where).shape[1].size;
    if (head.form == "none") {
        if (!head.states.empty() || head.window != 0 || seen != 1)
            refuse(where, "a head of form 'none' has no state, the window 0 and an attention of one number");
    } else {
        inputs.insert("history_length");
        has(artifact.inputs, "history_length", "int64", {1}, where);
    }
    bool history = false;
    std::set<string> states;
    for (const State &state : head.states) {
        if (!states.insert(state.name).second) refuse(where, "two states are named '" + state.name + "'");
        vector<int64_t> shape = state.shape, row = state.shape;
        inputs.insert(state.name);
        if (row.empty()) refuse(where, "the state '" + state.name + "' has no axis of photos");
        if (head.form == "window") {
            if (state.update != "append" || shape[0] != head.window) refuse(where, "a window appends one row a photo");
            shape.insert(shape.begin(), 1);
            row[0] = 1;
            if (state.source != "feature") has(artifact.outputs, state.source, "float32", row, where), outputs.insert(state.source);
            history = history || (state.name == "history" && state.source == "feature" && state.shape.size() == 2 && state.shape[1] == width);
        } else {
            const int64_t slots = row[size_t(state.axis)];
            if (state.update != "ring" || slots < 1 || slots > head.window) refuse(where, "a ring has 1 to W slots");
            row.erase(row.begin() + std::ptrdiff_t(state.axis));
            const Tensor *source = named(artifact.outputs, state.source);
            vector<int64_t> sizes;
            if (source)
                for (const Axis &axis : source->shape) sizes.push_back(axis.is_free ? -1 : axis.size);
            if (!source || source->type != "float32" || std::count(sizes.begin(), sizes.end(), -1) ||
                product(sizes, where, MOST_NUMBERS) != product(row, where, MOST_NUMBERS))
                refuse(where, "the output '" + state.source + "' does not fill a slot of '" + state.name + "'");
            outputs.insert(state.source);
        }
        has(artifact.inputs, state.name, "float32", shape, where);
    }
    if (head.form == "window" && (!history || seen != head.window + 1))
        refuse(where, "a window has the state 'history' and an attention of W + 1 numbers");
    if (head.form == "streaming" && (seen < 1 || seen > head.window + 1)) refuse(where, "attention has 1 to W + 1 numbers");
    for (const Tensor &input : artifact.inputs)
        if (!inputs.count(input.name) && !defaults.count(input.name)) refuse(where, "the input '" + input.name + "' is unknown");
    for (const Tensor &output : artifact.outputs)
        if (!outputs.count(output.name)) refuse(where, "the output '" + output.name + "' is unknown");
}

std::set<string> fit_defaults(const Artifact &artifact, const fs::path &bundle, const string &where) {
    std::set<string> names;
    if (!artifact.has_defaults) return names;
    for (const auto &item : read_tensors(verified(bundle, artifact.defaults), artifact.defaults.file)) {
        const string type = item.second.type == "F32" ? "float32" : item.second.type == "I64" ? "int64" : item.second.type;
        has(artifact.inputs, item.first, type, item.second.shape, where);
        names.insert(item.first);
    }
    return names;
}

void check(const Manifest &manifest, const fs::path &bundle) {
    std::set<string> heads, of_artifacts, targets, spaces;
    for (const Head &head : manifest.heads)
        if (!heads.insert(head.name).second) refuse("heads", "the name '" + head.name + "' comes twice");
    for (const Artifact &artifact : manifest.artifacts) {
        const string target = artifact.role + " " + artifact.head + " " + artifact.runtime + ":" + artifact.precision;
        if (!targets.insert(target).second) refuse("artifacts", "two are the " + target);
        if (artifact.role == "head") of_artifacts.insert(artifact.head);
        else spaces.insert(artifact.space);
    }
    if (heads != of_artifacts) refuse("heads", "are not those of the artifacts");
    for (const Artifact &artifact : manifest.artifacts) {
        verify(bundle, artifact.file, true);
        const std::set<string> defaults = fit_defaults(artifact, bundle, artifact.file.file);
        if (artifact.role == "encoder") {
            fit_encoder(artifact, manifest, defaults, artifact.file.file);
            continue;
        }
        for (const Head &head : manifest.heads)
            if (head.name == artifact.head) fit_head(artifact, head, defaults, artifact.file.file);
        bool accepted = spaces.empty();
        for (const Artifact &encoder : manifest.artifacts) {
            const auto &accepts = artifact.accepts;
            if (encoder.role != "encoder" || !std::count(accepts.begin(), accepts.end(), encoder.space)) continue;
            accepted = true;
            const int64_t width = named(encoder.outputs, "feature") ? named(encoder.outputs, "feature")->shape.back().size : 0;
            if (named(artifact.inputs, "feature")->shape[1].size != width)
                refuse(artifact.file.file, "takes features of another width than " + encoder.file.file + " gives");
        }
        if (!accepted) refuse(artifact.file.file, "accepts the features of no encoder of the bundle");
    }
    for (const Listed &photo : manifest.photos) verify(bundle, photo, false);
    for (const Head &head : manifest.heads)
        for (const Listed &file : head.files) read_tensors(verified(bundle, file), file.file);
    if (manifest.has_bank) verify(bundle, manifest.bank, true);
}

// ---- what is printed

string shown(const vector<Axis> &shape) {
    string found;
    for (const Axis &axis : shape) found += (found.empty() ? "" : ", ") + (axis.is_free ? axis.name : std::to_string(axis.size));
    return "(" + found + ")";
}
string shown(const vector<int64_t> &shape) {
    string found;
    for (const int64_t size : shape) found += (found.empty() ? "" : ", ") + std::to_string(size);
    return "(" + found + ")";
}

void print_tensors(const TensorFile &file) {
    for (const auto &item : file)
        std::cout << "  tensor " << item.first << " " << item.second.type << " " << shown(item.second.shape) << "\n";
}

// A native head's file: docs/formats/native-head.md.
void print_native(const string &content, const string &where) {
    const TensorFile file = read_tensors(content, where);
    const auto config = file.find("config");
    if (config == file.end() || config->second.type != "I64" || config->second.shape != vector<int64_t>{16})
        refuse(where, "has no configuration of 16 numbers");
    if (little(content, config->second.begin, 8) != 1) refuse(where, "has a configuration of another version than 1");
    const char *names[16] = {"version", "form", "width", "signature", "partitions", "layers", "heads", "window",
                             "rows", "classes", "traits", "hidden", "classifier", "flags", "precision", "warm_up"};
    std::cout << "  config";
    for (size_t i = 0; i < 16; ++i)
        std::cout << " " << names[i] << "=" << int64_t(little(content, config->second.begin + 8 * i, 8));
    std::cout << "\n";
    print_tensors(file);
}

void print(const Manifest &manifest, const fs::path &bundle) {
    std::cout << "bundle " << manifest.name << ", manifest number " << manifest.version << ", every file verified\n";
    std::cout << "preprocessing shorter " << manifest.shorter << " crop " << manifest.crop << " " << manifest.filter << " "
              << manifest.decoder << "\n";
    for (const Artifact &artifact : manifest.artifacts) {
        std::cout << "artifact " << artifact.role << " " << (artifact.head.empty() ? "" : artifact.head + " ")
                  << artifact.runtime << ":" << artifact.precision << " " << artifact.file.file << " " << artifact.file.size
                  << " bytes\n";
        for (const Tensor &tensor : artifact.inputs)
            std::cout << "  input " << tensor.name << " " << tensor.type << " " << shown(tensor.shape) << "\n";
        for (const Tensor &tensor : artifact.outputs)
            std::cout << "  output " << tensor.name << " " << tensor.type << " " << shown(tensor.shape) << "\n";
        if (artifact.runtime == "native" && fs::is_regular_file(bundle / artifact.file.file))
            print_native(verified(bundle, artifact.file), artifact.file.file);
        if (artifact.has_defaults) {
            std::cout << "  defaults " << artifact.defaults.file << "\n";
            print_tensors(read_tensors(verified(bundle, artifact.defaults), artifact.defaults.file));
        }
    }
    for (const Head &head : manifest.heads) {
        std::cout << "head " << head.name << " " << head.form << " window " << head.window << " carrier " << head.carrier << "\n";
        for (const State &state : head.states)
            std::cout << "  state " << state.name << " from " << state.source << " " << shown(state.shape) << " " << state.update << "\n";
        for (const string &label : head.labels) std::cout << "  label " << label << "\n";
        for (const Listed &file : head.files) {
            std::cout << "  file " << file.file << "\n";
            print_tensors(read_tensors(verified(bundle, file), file.file));
        }
    }
    for (const Listed &photo : manifest.photos) std::cout << "photo " << photo.file << " " << photo.size << " bytes\n";
    if (manifest.has_bank) std::cout << "bank " << manifest.bank.file << " " << manifest.bank.size << " bytes\n";
    if (manifest.has_task) std::cout << "condensed for a task\n";
}

void print_numbers_of(const Manifest &manifest, const fs::path &bundle, const string &file, const string &tensor) {
    vector<Listed> files;
    for (const Artifact &artifact : manifest.artifacts) {
        if (artifact.runtime == "native") files.push_back(artifact.file);
        if (artifact.has_defaults) files.push_back(artifact.defaults);
    }
    for (const Head &head : manifest.heads) files.insert(files.end(), head.files.begin(), head.files.end());
    for (const Listed &listed : files) {
        if (listed.file != file) continue;
        const string content = verified(bundle, listed);
        const TensorFile found = read_tensors(content, file);
        if (!found.count(tensor)) refuse(file, "has no tensor '" + tensor + "'");
        print_numbers(content, found.at(tensor));
        return;
    }
    refuse(file, "is no tensor file of this bundle");
}

int main(int count, char **words) {
    try {
        if (count == 3 && string(words[1]) == "--tensors") {
            print_tensors(read_tensors(read_file(words[2], uint64_t(256 * MIB), words[2]), words[2]));
            return 0;
        }
        if (count != 2 && !(count == 5 && string(words[2]) == "--numbers")) {
            std::cerr << "usage: bundle_reader BUNDLE [--numbers FILE TENSOR] | --tensors FILE\n";
            return 2;
        }
        const fs::path bundle = words[1];
        const Manifest manifest = read_manifest(read_file(bundle / "manifest.json", 16777216, "manifest.json"));
        check(manifest, bundle);
        if (count == 5) print_numbers_of(manifest, bundle, words[3], words[4]);
        else print(manifest, bundle);
        return 0;
    } catch (const std::exception &error) {
        string line = error.what();
        std::replace(line.begin(), line.end(), '\n', ' ');
        std::cerr << "bundle_reader: " << line << "\n";
        return 1;
    }
}
