"""The table of docs/training.md has every function of tensors that the headers declare, and no other: SOURCE_DIR"""
import pathlib
import re
import sys
import unittest

SOURCE = pathlib.Path(sys.argv.pop(1))
HEADERS = [*sorted((SOURCE / "runtime/ops").glob("*.h")), *sorted((SOURCE / "runtime/nn").glob("*.h")),
           SOURCE / "runtime/tensor.h"]
# Names that the functions use.
WITHIN = {"append", "append_input", "append_to", "refuse", "refuse_all", "dim_of", "dims_of", "dims_in_order", "nearest_ids", "need_element_along", "all_dims", "last_dim", "binary",
          "parse_graph", "broadcast_shape", "complete_shape", "cumulative", "graph_of", "keep_named", "tensor_beside",
          "default_mesh", "set_default_mesh", "record_with", "record_cond"}


def declared(path):
    """Names of functions at the beginning of a line, without namespace detail, comments, deleted ones and operators."""
    text = re.sub(r"(?ms)^namespace detail \{.*?^\}  // namespace detail", "", path.read_text())
    text = re.sub(r"//.*", "", text)
    for match in re.finditer(r"(?m)^(?:\[\[noreturn\]\] |inline )?[\w:]+(?:<[^;{}()]*>)?[ &]+(\w+)\(", text):
        end = re.search(r"[;{]", text[match.end():])
        if "= delete" not in text[match.end():match.end() + end.start()]:
            yield match.group(1)


class FunctionTable(unittest.TestCase):
    def test_it_is_what_the_headers_declare(self):
        page = (SOURCE / "docs/training.md").read_text()
        rows = re.findall(r"(?m)^\| (`[^|]*) \|", page.partition("\n## All functions\n")[2].partition("\n## ")[0])
        listed = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
        self.assertEqual(len(listed), len(set(listed)), "a function is there twice")
        found = {name for path in HEADERS for name in declared(path)} - WITHIN
        self.assertGreater(len(found), 80)
        self.assertEqual(found - set(listed), set(), "not in the table")
        self.assertEqual(set(listed) - found, set(), "in no header")


if __name__ == "__main__":
    unittest.main()
