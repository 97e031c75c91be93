"""Makes a test of every example in a comment of a public header: generate.py SOURCE_DIR COMPONENT OUT.cc
(COMPONENT "docs": of the C++ of docs/loader.md, docs/pipelines.md, docs/serving.md, docs/sharding.md and docs/training.md)

An example is text that a "///" comment indents by two more spaces. It becomes the body of a test, after the
setup below, if it needs one. A comment after an expression is compared with its value, as text:

    mesh.size();       // 8               the value's text comes first; more may follow, after a sign
    parse("x") == y;                      holds
    ...                                   is left out, `for (...) ...` has an empty body
"""
import pathlib
import re
import sys

# Setup of examples, by header.
SETUP = {
    "checkpoint/attempt.h": """const InTempDir here;
        Devices devices(1);
        const std::vector<float> values(4, 1);
        const auto w = ShardedArray::from_host(
            devices, {DType::f32, {4}, Sharding::replicated(Mesh::line(1), 1)}, std::as_bytes(std::span(values)));""",
    "jobs/save_together.h": """const InTempDir here;
        const ProcessGroup group;
        Devices devices(1);
        const std::vector<float> values(4, 1);
        const auto w = ShardedArray::from_host(
            devices, {DType::f32, {4}, Sharding::replicated(Mesh::line(1), 1)}, std::as_bytes(std::span(values)));""",
    "checkpoint/box_reader.h": 'const InTempDir here;\nCheckpointManager manager("root");',
    "reshape/edits.h": """const InTempDir here;
        const std::vector<float> values(4, 1);
        const ArraySpec spec{DType::f32, {2, 2}, Sharding::replicated(Mesh::line(1), 2)};
        CheckpointManager("root").save(1, {host_source("w", spec, std::as_bytes(std::span(values)))});""",
    "jobs/manager.h": """const InTempDir here;
        Devices devices(1);
        const std::vector<float> values(4, 1);
        auto w = ShardedArray::from_host(
            devices, {DType::f32, {4}, Sharding::replicated(Mesh::line(1), 1)}, std::as_bytes(std::span(values)));""",
    "checkpoint/reader.h": """const InTempDir here;
        std::vector<float> values(12 * 4);
        const CheckpointReader reader(save_checkpoint("w", {host_source("w", {12, 4}, values)}).directory);
        Devices devices(1);
        const Sharding rows = Sharding::replicated(Mesh::line(1), 2);
        Tracer tracer(devices);
        const std::map<std::string, Tensor> params{{"w", tracer.tensor({12, 4}, values, "w")}};""",
    "checkpoint/save.h": """const InTempDir here;
        CheckpointManager manager("root");
        const std::vector<float> values(12 * 4);
        const std::int64_t step = 7;
        Devices devices(1);
        Tracer tracer(devices);
        const std::map<std::string, Tensor> params{{"w", tracer.tensor({12, 4}, values, "w")}};""",
    "tiers/tiers.h": "const InTempDir here;",
    "convert/model.h": """const InTempDir here;
        const std::vector<float> values(4, 1);
        const ArraySpec spec{DType::f32, {2, 2}, Sharding::replicated(Mesh::line(1), 2)};
        const TensorSource w = host_source("w", spec, std::as_bytes(std::span(values)));
        export_model(*w.reader, "model.safetensors");
        CheckpointManager("checkpoints").save(1, {w});""",
    "convert/elements.h": """const std::vector<float> values(4, 1);
        const ArraySpec spec{DType::f32, {2, 2}, Sharding::replicated(Mesh::line(1), 2)};
        const TensorSource w = host_source("w", spec, std::as_bytes(std::span(values)));
        const BoxReader& reader = *w.reader;""",
    "convert/diff.h": """const InTempDir here;
        const std::vector<float> values(4, 1);
        const ArraySpec spec{DType::f32, {2, 2}, Sharding::replicated(Mesh::line(1), 2)};
        const TensorSource w = host_source("w", spec, std::as_bytes(std::span(values)));
        export_model(*w.reader, "model.safetensors");
        CheckpointManager("run").save(1, {w});""",
    "convert/program_file.h": """const InTempDir here;
        Devices one(1);
        Tracer tracer(one);
        Tensor w = tracer.abstract_tensor({DType::f32, {4, 8}}, "w", MemoryKind::parameter);
        w = w * 0.9;
        tracer.plan();
        save_program(tracer.last()->graph(), "step.swp");""",
    "loader/host_loader.h": """const Mesh mesh = Mesh::parse("data=4");
        const auto source = memory_source({"image", DType::u8, {2, 2}}, 600, std::vector<std::byte>(2400));""",
    "loader/loader.h": """Devices devices(4);
        const Mesh mesh = Mesh::parse("data=4");
        const auto source = zip({memory_source({"image", DType::u8, {2, 2}}, 600, std::vector<std::byte>(2400)),
                                 memory_source({"label", DType::u8, {}}, 600, std::vector<std::byte>(600))});""",
    "loader/placement.h": """const Mesh mesh = Mesh::parse("data=4");
        const auto source = zip({memory_source({"image", DType::u8, {2, 2}}, 6, std::vector<std::byte>(24)),
                                 memory_source({"label", DType::u8, {}}, 6, std::vector<std::byte>(6))});""",
    "loader/open_source.h": """const InTempDir here;
        write_file("train.bin", std::string(2 * 1025, 'x'));""",
    "loader/source.h": """const InTempDir here;
        std::string npy = "\\x93NUMPY" + std::string("\\1\\0\\x3a\\0", 4);
        npy += "{'descr': '|u1', 'fortran_order': False, 'shape': (0,)}  \\n";
        write_file("a.npy", npy);
        write_file("b.npy", npy);""",
    "loader/sources/arrays.h": """const InTempDir here;
        std::string npy = "\\x93NUMPY" + std::string("\\1\\0\\x3a\\0", 4);
        npy += "{'descr': '|u1', 'fortran_order': False, 'shape': (0,)}  \\n";
        write_file("images.npy", npy);
        write_file("train-images-idx3-ubyte.gz", std::string("\\0\\0\\x08\\1\\0\\0\\0\\1x", 9));
        write_file("train.bin", std::string(2 * 1025, 'x'));""",
    "loader/sources/text.h": """const InTempDir here;
        write_file("houses.csv", "price,rooms,age,street\\n1e5,3,20,High Street\\n");
        write_file("texts.jsonl", "{\\"tokens\\": [1, 2, 3]}\\n");""",
    "loader/stages/select.h": """const auto a = memory_source({"label", DType::u8, {}}, 600, std::vector<std::byte>(600, std::byte{3}));
        const auto b = a;
        const auto source = memory_source({"label", DType::u8, {}}, 600, std::vector<std::byte>(600, std::byte{3}));""",
    "shard/plan/transfer_plan.h": """const Sharding rows_by_4(Mesh::line(4), {{"devices"}, {}});
        const Sharding rows_by_2(Mesh::line(2), {{"devices"}, {}});
        std::vector<DeviceAttributes> devices;
        for (DeviceId id = 0; id < 8; ++id) devices.push_back({.id = id, .process = id / 4});""",
    "loader/sources/tfrecord.h": """const InTempDir here;
        write_file("train-0.tfrecord", "");
        write_file("train-1.tfrecord", "");""",
    "loader/sources/images.h": """const InTempDir here;
        const auto hex = [](const char* digits) {  // of a PNG of one pixel
          std::string bytes;
          for (; *digits != 0; digits += 2) bytes += static_cast<char>(std::stoi(std::string(digits, 2), nullptr, 16));
          return bytes;
        };
        for (const char* name : {"cat", "dog"}) {
          std::filesystem::create_directories(std::string("train/") + name);
          write_file(std::string("train/") + name + "/1.png",
                     hex("89504e470d0a1a0a0000000d49484452000000010000000108000000003a7e9b550000"
                         "000a49444154789c636800000082008177cd72b60000000049454e44ae426082"));
        }""",
    "loader/stages/convert.h": """const auto source = zip({memory_source({"image", DType::u8, {32, 32, 3}}, 4, std::vector<std::byte>(4 * 3072)),
                                 memory_source({"label", DType::u8, {}}, 4, std::vector<std::byte>(4))});""",
    "loader/stages/filter.h": """const InTempDir here;
        const auto source = zip({memory_source({"image", DType::u8, {2, 2}}, 600, std::vector<std::byte>(2400)),
                                 memory_source({"label", DType::u8, {}}, 600, std::vector<std::byte>(600, std::byte{3}))});
        const auto is_bright = [](std::span<const FieldValue> values) { return values[0].data[0] == std::byte{0}; };""",
    "runtime/timeline.h": "const InTempDir here;",
    "loader/stages/map.h": """const auto source = zip({memory_source({"image", DType::u8, {2, 2}}, 600, std::vector<std::byte>(2400)),
                                 memory_source({"label", DType::u8, {}}, 600, std::vector<std::byte>(600, std::byte{3}))});""",
    "loader/stages/pack.h": """const auto source =
            memory_source({"text", DType::u16, {5}}, 60, std::vector<std::byte>(600));""",
    "loader/stages/region.h": """const auto source = memory_source({"image", DType::u8, {32, 32, 3}}, 4, std::vector<std::byte>(4 * 3072));""",
    "runtime/device.h": """Devices devices(8);
        const std::vector<std::size_t> sizes{100, 200};
        const MemoryKind kind = MemoryKind::array;
        std::vector<std::shared_ptr<Buffer>> buffers;""",
    "runtime/manual.h": """Devices devices(8);
        const Mesh mesh = Mesh::parse("data=4,model=2");
        const auto zeros = [&](Shape shape, const char* spec) {
          const std::vector<std::byte> bytes(num_bytes(shape, 4));
          return ShardedArray::from_host(
              devices, {DType::f32, shape, Sharding(mesh, PartitionSpec::parse(spec))}, bytes);
        };
        const auto batch = zeros({256, 784}, "data,-"), weights = zeros({784, 128}, "-,model");
        const auto multiply = [](const LocalContext& local) {
          std::memset(local.outputs[0].data, 0, num_bytes(local.outputs[0].box.shape(), 4));
        };""",
    "runtime/parallel.h": "const Executor executor(2);",
    "runtime/sharded_array.h": """const std::vector<float> floats(30);
        const std::span values(floats);""",
    "runtime/tensor.h": """Devices devices(2);
        Tracer tracer(devices);
        const std::vector<float> floats(12, 0.5F);
        const auto bytes = std::as_bytes(std::span(floats));
        const Tensor x = tracer.tensor({DType::f32, {4, 3}}, bytes, "x");
        const Tensor w = tracer.tensor({DType::f32, {3, 4}}, bytes, "w");""",
    "runtime/ops/autodiff.h": """Devices devices(1);
        Tracer tracer(devices);
        Tensor h = tracer.tensor({2}, {1.0F, 2.0F}, "h");
        using Layer = std::function<Tensor(const Tensor&)>;
        const std::vector<Layer> layers{[](const Tensor& x) { return tanh(x); }};""",
    "runtime/nn/experts.h": """Devices devices(1);
        Tracer tracer(devices);
        const Tensor x = full(tracer, {DType::f32, {2, 8, 4}}, 1, "x"), router = full(tracer, {DType::f32, {4, 3}}, 1, "router"),
                     ws = full(tracer, {DType::f32, {3, 4, 4}}, 1, "ws");""",
    "runtime/ops/control.h": """Devices devices(1);
        Tracer tracer(devices);
        const Tensor first = tracer.tensor<float>({2, 3}, {1, 2, 3, 4, 5, 6}), w = full(tracer, {DType::f32, {3, 3}}, 1, "w"),
                     xs = full(tracer, {DType::f32, {4, 2, 3}}, 1, "xs"), ws = full(tracer, {DType::f32, {4, 3, 3}}, 1, "ws"), x = first * 2.0, step = sum(first);""",
    "runtime/tracer.h": """const std::vector<float> pixels(784 * 64, 0.5F), weights(784 * 10, 0.5F);
        Devices one(1);
        Tracer tracer(one);""",
    "shard/owned_tiles.h": """const Sharding sharding(Mesh::line(4), {{"devices"}});
        const Shape shape{8};
        const Box region({2}, {7});""",
    "shard/shard_boxes.h": 'const Sharding sharding(Mesh::line(4), {{"devices"}});\nconst Shape shape{8};',
    "shard/torus/hybrid_mesh.h": """std::vector<DeviceAttributes> devices;
        for (DeviceId id = 0; id < 8; ++id) {
          devices.push_back({.id = id, .coordinates = {id % 4 / 2, id % 2}, .slice_index = id / 4});
        }""",
    "shard/view/process_view.h": 'const Sharding sharding(Mesh::line(16), {{"devices"}});',
}

# More headers that an example needs.
INCLUDES = {
    "jobs/manager.h": ["checkpoint/reader.h"],
    "checkpoint/reader.h": ["checkpoint/attempt.h", "runtime/tracer.h"],
    "checkpoint/save.h": ["jobs/manager.h", "runtime/tracer.h"],
    "convert/diff.h": ["jobs/manager.h", "checkpoint/reader.h", "convert/model.h"],
    "convert/elements.h": ["checkpoint/save.h"],
    "convert/model.h": ["jobs/manager.h", "checkpoint/reader.h", "reshape/reshard.h"],
    "convert/program_file.h": ["runtime/tracer.h"],
    "loader/source.h": ["loader/sources/arrays.h"],
    "runtime/ops/autodiff.h": ["runtime/tracer.h"],
    "runtime/nn/experts.h": ["runtime/tracer.h", "runtime/nn/optimizers.h"],
    "runtime/ops/control.h": ["runtime/tracer.h", "runtime/nn/optimizers.h", "runtime/nn/layers.h"],
}

# checkpoint/jobs/manager.h is "shardwise/jobs/manager.h".
ROOM = re.compile("^checkpoint/(?=[a-z]+/)")
EXPRESSION = re.compile(r"[A-Za-z_][\w:]*(\(|\.|->)")


def examples(path):
    """(line number, lines) of each."""
    block, begin = [], 0
    for number, line in enumerate(path.read_text().splitlines() + [""], 1):
        match = re.match(r"\s*///( (.*))?$", line)
        text = match and (match.group(2) or "")
        if match and (text.startswith("  ") or (block and not text)):
            if not block:
                begin = number
            block.append(text[2:])
        else:
            while block and not block[-1]:
                block.pop()
            if any(re.search(r"(;|[{}]| \.\.\.)$", line.partition("//")[0].rstrip()) for line in block):
                yield begin, block
            block = []


def statement(line, starts):
    """The line as it is compiled; `starts`: it begins a statement."""
    code, _, comment = line.partition("//")
    code, comment = code.rstrip(), comment.strip()
    code = re.sub(r"\{ \.\.\. \}", "{}", code)
    code = re.sub(r"\) \.\.\.$", ") {}", code)
    if code.strip() == "...":
        return ""
    if starts and code.endswith(";") and EXPRESSION.match(code) and " = " not in code:
        if comment:
            return f"example.check({code[:-1]}, {quoted(comment)});"
        if " == " in code:
            return f"EXPECT_TRUE({code[:-1]});"
    return code


def quoted(text):
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def samples(path):
    """(line number, lines) of each ```cpp block of a page."""
    block = None
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if line == "```cpp":
            block, begin = [], number + 1
        elif line == "```" and block is not None:
            yield begin, block
            block = None
        elif block is not None:
            block.append(line)


def body_of(lines):
    body, starts = [], True
    for line in lines:
        body.append("  " + statement(line, starts))
        code = line.partition("//")[0].rstrip()
        starts = code.endswith((";", "}")) if code else starts
    return "\n".join(body)


# Setup of the sections of docs/training.md, and results that the page does not show.
TRAINING_SETUP = """const InTempDir here;
  std::vector<float> places;
  std::vector<std::int32_t> labels;
  for (int i = 0; i < 256; ++i) {
    for (int k = 0; k < 4; ++k) places.push_back(static_cast<float>((i * 37 + k * 11) % 64) / 32 - 1);
    labels.push_back(places[places.size() - 4] > 0.3F ? 2 : places[places.size() - 3] > 0 ? 1 : 0);
  }
  const auto bytes_of = [](const auto& values) {
    const auto bytes = std::as_bytes(std::span(values));
    return std::vector<std::byte>(bytes.begin(), bytes.end());
  };
  const auto source = zip({memory_source({"x", DType::f32, {4}}, 256, bytes_of(places)),
                           memory_source({"label", DType::i32, {}}, 256, bytes_of(labels))});"""
TRAINING_AFTER = {"a_training_loop": "EXPECT_LT(last, 0.4);"}


def sections(path):
    """(title, [[line, ..], ..]) of each "## ": the C++ of its blocks, and of its "### " that of their blocks and of the
    second columns of their tables."""
    title, parts, inside = None, [], False
    for line in path.read_text().splitlines() + ["## "]:
        if line.startswith("## "):
            if any(parts):
                yield title, parts
            title, parts = re.sub(r"[^a-z0-9]+", "_", line[3:].lower()), [[]]
        elif line.startswith("### "):
            parts.append([])
        elif line.startswith("```"):
            inside = line == "```cpp"
        elif inside:
            parts[-1].append(line)
        elif line.startswith("| ") and len(parts) > 1:
            parts[-1] += [code for code in re.findall(r"`([^`]+)`", line.split(" | ", 1)[1]) if re.search(r"(;|[{}])( *//.*)?$", code)]


def docs(source, out):
    """Tests of the samples of docs/loader.md, in a folder with the files that they name, and of the other pages."""
    text = '#include "header_examples/example.h"\n#include "header_examples/loader_files.h"\n#include "shardwise/shardwise.h"\n'
    text += "\nnamespace shardwise {\nnamespace {\n\nnamespace sw = shardwise;  // as a user's program has it\n\n"
    for page, setup in (("loader", "write_loader_files();"), ("sharding", ""), ("pipelines", ""), ("serving", "")):
        for number, lines in samples(source / "docs" / f"{page}.md"):
            text += f"TEST(Docs, {page}_md_{number}) {{\n  Example example;\n  const InTempDir here;\n  {setup}\n"
            text += "  {\n" + body_of(lines) + "\n  }\n}\n\n"
    for title, parts in sections(source / "docs" / "training.md"):
        text += f"TEST(Docs, training_md_{title}) {{\n  Example example;\n  {TRAINING_SETUP}\n  {{\n"
        text += body_of(parts[0]) + "".join("\n  {\n" + body_of(part) + "\n  }" for part in parts[1:])
        text += f"\n  {TRAINING_AFTER.get(title, '')}\n  }}\n}}\n\n"
    pathlib.Path(out).write_text(text + "}  // namespace\n}  // namespace shardwise\n")


def main(source, component, out):
    headers = [
        path
        for path in sorted((source / component).rglob("*.h"))
        if "detail" not in path.relative_to(source).parts
    ]
    includes, tests = [], []
    for path in headers:
        name = ROOM.sub("", path.relative_to(source).as_posix())
        for line_number, lines in examples(path):
            includes += [f'#include "shardwise/{header}"' for header in (name, *INCLUDES.get(name, ()))]
            test = f"{re.sub(r'[/.]', '_', name)}_{line_number}"
            setup = SETUP.get(name, "")
            tests.append(
                f"TEST(HeaderExamples, {test}) {{\n  Example example;\n  {setup}\n  {{\n" + body_of(lines) + "\n  }\n}\n"
            )
    text = '#include "header_examples/example.h"\n' + "\n".join(dict.fromkeys(includes))
    text += "\n\nnamespace shardwise {\nnamespace {\n\n" + "\n".join(tests) + "\n}  // namespace\n}  // namespace shardwise\n"
    pathlib.Path(out).write_text(text)


if sys.argv[2] == "docs":
    docs(pathlib.Path(sys.argv[1]), sys.argv[3])
else:
    main(pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3])
