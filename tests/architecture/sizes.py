"""Counts public headers, fields and methods of each component, and holds the counts: sizes.py SIZES. Run
in the folder of the sources. Prints each breach. A line of SIZES: component, public headers, most fields
of a struct, most methods of a class; or "includes", a public header, how many headers of checkpoint/ a
program gets with it, and their lines. Fields and methods are public ones; deleted ones, constructors and
operators do not count."""
import pathlib
import re
import sys

ROOMS = ("bucket", "mend", "jobs", "reshape", "tiers")


def folder_of(component):
    return pathlib.Path("checkpoint", component) if component in ROOMS else pathlib.Path(component)


def public_headers(component):
    inside = [path for path in sorted(folder_of(component).rglob("*.h")) if "detail" not in path.parts]
    return [path for path in inside if component != "checkpoint" or path.parts[1] not in ROOMS]


def statements(body):
    """The declarations in braces, one at a time: (text, inner body or None)."""
    text, inner, depth = "", None, 0
    for at, c in enumerate(body):
        if c == "{":
            if depth == 0:
                begin = at + 1
            depth += 1
        elif c == "}":
            depth -= 1
            if depth == 0:
                inner = body[begin:at]
                # A function or type ends here, a field with an initializer at its semicolon.
                if re.search(r"namespace \w*\s*$|\)\s*(const|override|final|noexcept|:[^:].*)*\s*$", text):
                    yield text.strip(), None
                    text, inner = "", None
        elif depth == 0 and c == ";":
            yield text.strip(), inner
            text, inner = "", None
        elif depth == 0:
            text += c
            if re.search(r"(^|\s)(public|private|protected):$", text):
                yield text.strip(), None
                text = ""


def types(body):
    """(name, fields, methods) of each struct and class."""
    for text, inner in statements(body):
        if inner is None:
            continue
        found = re.match(r"(?:template <.*> )?(struct|class) (?:\[\[\w+\]\] )?([\w:]+)", text)
        if found:
            yield from members(found[2], found[1], inner)


def members(name, kind, body):
    fields, methods, is_public = 0, 0, kind == "struct"
    for text, inner in statements(body):
        access = re.fullmatch(r"(public|private|protected):", text)
        if access:
            is_public = access[1] == "public"
        elif not is_public or re.match(r"(using|friend|enum|static_assert|template <class = void>)\b", text):
            continue
        elif re.match(r"(struct|class) ", text):
            if inner is not None:
                yield from types(text + "{" + inner + "};")
        elif text and not re.search(r"\boperator\b|= (delete|default)$", text):
            plain = text
            while re.search(r"<[^<>]*>", plain):
                plain = re.sub(r"<[^<>]*>", "", plain)
            declared = re.sub(r"\[\[.*?\]\]", "", plain).partition("=")[0]
            if "(" in declared:
                called = re.search(r"([~\w]+)\s*\(", declared)
                methods += bool(called) and called[1].lstrip("~") != name
            elif "static constexpr" not in declared:
                fields += 1 + re.sub(r"\([^()]*\)", "", plain).count(",")
    yield name, fields, methods


def types_of(header):
    text = re.sub(r"//[^\n]*|^ *#[^\n]*", "", header.read_text(), flags=re.M)
    text = re.sub(r""""(?:[^"\\]|\\.)*"|(?<!\w)'(?:[^'\\]|\\.)'""", '""', text)
    text = re.sub(r"\s+", " ", text)
    begin = text.find("namespace shardwise {") + len("namespace shardwise {")
    return list(types(text[begin : text.rfind("}")]))


def includes(header, seen):
    """The public headers of checkpoint/ and its rooms that a program gets with one of them."""
    if header in seen:
        return seen
    seen.add(header)
    for used in re.findall(r'#include "shardwise/([^"]+)"', header.read_text()):
        component = used.partition("/")[0]
        if component == "checkpoint" or component in ROOMS:
            includes(folder_of(component) / used.partition("/")[2], seen)
    return seen


def counts(what, header):
    """(name, number) of each thing that a line holds."""
    if what == "includes":
        headers = includes(pathlib.Path(header), set())
        lines = sum(len(one.read_text().splitlines()) for one in headers)
        return [(f"headers with {header}", len(headers)), (f"lines of headers with {header}", lines)]
    headers = public_headers(what)
    found = [one for path in headers for one in types_of(path)]
    by_fields, by_methods = max(found, key=lambda one: one[1]), max(found, key=lambda one: one[2])
    return [
        (f"public headers of {what}/", len(headers)),
        (f"fields of {by_fields[0]}", by_fields[1]),
        (f"methods of {by_methods[0]}", by_methods[2]),
    ]


for line in pathlib.Path(sys.argv[1]).read_text().splitlines():
    if line.startswith("#"):
        continue
    what, *words = line.split()
    numbers = [int(word) for word in words if word.isdigit()]
    for (name, count), most in zip(counts(what, words[0]), numbers, strict=True):
        if count > most:
            print(f"{name}: found {count}, never more than {most}: {sys.argv[1]}")
