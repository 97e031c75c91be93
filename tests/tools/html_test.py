"""The page of a plan in a browser: its numbers are those of --json, whatever the names; it is readable on a phone."""
import json
import unittest

from browser import BROWSER, MISSING, Browser
from cli_test import Cli, run
from plan_test import PROGRAM

# Uneven tiles and replicas, in one and in three dims.
UNEVEN = """\
%0 = input() "blocks/0/table" : f32[10, 7] marked data,- kind=parameter
%1 = input() "blocks/1/cube" : f32[3, 4, 5] marked data,-,model kind=parameter
%2 = neg(%0) : f32[10, 7]
%3 = neg(%1) : f32[3, 4, 5]
return %2 %3
"""
HOSTILE = ("</script><script>window.broken = 1</script>", "<img src=x onerror=window.broken=2>", "{{script}}{{data}}", "<!--<script>",
           "&lt;b&gt; & it's", "\u2028\u2029 \u00e9\U0001f600", "../../a//b..c", "%5 $& ${window.broken = 3} `")


def rows(element):
    """The texts of a table's cells."""
    return f"[...document.querySelectorAll('#{element} tbody tr')].map(row => [...row.cells].map(cell => cell.textContent))"


@unittest.skipUnless(BROWSER, MISSING)
class Html(Cli):
    @classmethod
    def setUpClass(cls):
        cls.browser = Browser()
        cls.addClassCleanup(cls.browser.close)

    def setUp(self):
        super().setUp()
        self.program, self.page = self.dir / "step.swp", self.dir / "plan.html"
        self.program.write_text(PROGRAM)

    def written(self, *options, status=0, **how):
        """What --json says of the page that is shown."""
        done = run("plan", self.program, *options, "--html", self.page, "--json")
        self.assertEqual((done.returncode, done.stderr), (status, ""))
        self.browser.open(self.page, **how)
        self.assertEqual(self.browser.errors, [])
        self.assertEqual(self.browser.requests, [self.page.as_uri()])
        return json.loads(done.stdout)

    def value(self, script):
        return self.browser.value(script)

    def bytes_of(self, where):
        return self.value(f"[...document.querySelectorAll('{where} [data-bytes]')].map(one => Number(one.dataset.bytes))")

    def data(self):
        return json.loads(self.value("document.getElementById('data').textContent"))

    def test_numbers_are_those_of_json(self):
        for options in (["--mesh", "data=8"], ["--mesh", "data=8", "--device", "h100-80gb", "--save-rate", "1GB/s"],
                        ["--mesh", "data=8", "--mark", "w*=data,-", "--device", "tpu-v4"]):
            found = self.written(*options)
            self.assertEqual(self.data()["plan"], found)
            memory, sent = found["memory"], [one["wire_bytes"] for one in found["traffic"]]
            self.assertEqual(self.bytes_of("#facts")[:2], [memory["peak_bytes"], sum(sent)])
            self.assertEqual(self.bytes_of("#traffic"), sent)
            self.assertEqual(self.bytes_of("#largest"), [one["bytes"] for one in memory["largest"]])
            by_kind = self.value("[...document.querySelectorAll('#memory-under [data-kind]')].map(one => [one.dataset.kind, Number(one.dataset.bytes)])")
            self.assertEqual(dict(by_kind), memory["by_kind"])
            self.assertIn(memory["step"], self.value("document.getElementById('memory-under').textContent"))
            # Bytes are written as the command writes them.
            text = self.value("document.querySelector('#peak').textContent")
            self.assertIn(f"needs {text} on the fullest device", self.ok("plan", self.program, *options))
            moves = self.data()["collectives"]["moves"]
            self.assertEqual(sum(one["wire_bytes"] for one in moves), sum(sent))
            self.assertEqual(sum(one["times"] for one in moves), sum(one["tensors"] for one in found["traffic"]))
            if found["modelled"]:
                whole = found["modelled"]["compute_seconds"] + found["modelled"]["collective_seconds"]
                self.assertAlmostEqual(self.data()["collectives"]["seconds"], whole, delta=1e-9 * whole)
                self.assertAlmostEqual(sum(one["seconds"] for one in moves), found["modelled"]["collective_seconds"], delta=1e-12)
                self.assertIn("Modelled times on", self.value("document.getElementById('time-note').textContent"))
            parameters = self.value("Number(document.querySelector('#tree summary [data-kind=parameter]').dataset.bytes)")
            self.assertEqual(parameters, memory["by_kind"]["parameter"])

    def test_a_kernel_of_attention_is_told(self):
        self.program.write_text(PROGRAM.replace("# layer0", "# layer0/fused attention"))
        for how in ("fused", "written"):
            self.assertEqual(self.written("--mesh", "data=8", "--attention", how)["attention"], how)
            self.assertIn(f"Attention{how}", self.value("document.getElementById('facts').textContent"))

    def test_a_step_is_told_where_the_pointer_or_a_key_is(self):
        self.written("--mesh", "data=8", "--device", "h100-80gb")
        curve = self.data()["curve"]
        box = self.value("(({x, y, width, height}) => ({x, y, width, height}))(document.querySelector('#memory-chart svg').getBoundingClientRect())")

        def shown():
            return (self.value("document.getElementById('memory-under').textContent"),
                    self.value("document.querySelector('#memory-chart svg').getAttribute('aria-valuenow')"))

        for number, point in enumerate(curve["points"]):
            left, right = 70, 14  # of the chart
            x = box["x"] + left + (point["step"] + 0.5) / curve["steps"] * (box["width"] - left - right)
            self.browser.point(x, box["y"] + box["height"] / 2)
            text, now = shown()
            self.assertEqual(now, str(point["step"]))
            self.assertIn(point["name"], text)
            self.assertIn(point["line"], text)
            here = self.bytes_of("#memory-under .held")
            always = [curve["tensors"][one]["bytes"] for one in curve["always"][:3]]
            self.assertEqual(here, [curve["tensors"][one]["bytes"] for one in point["largest"]] + always)
            self.assertEqual("The peak" in text, number == curve["fullest"])
        self.value("document.querySelector('#memory-chart svg').focus()")
        self.browser.press("Home")
        self.assertEqual(shown()[1], "0")
        self.browser.press("ArrowRight")
        self.assertEqual(shown()[1], str(curve["points"][1]["step"]))
        self.value("document.querySelector('#memory-under .link').click()")
        self.assertIn("The peak", shown()[0])

    def test_collectives_are_told_where_the_pointer_or_a_key_is(self):
        self.program.write_text(PROGRAM.replace("tanh(%3)", "reverse(%3) dims=[0]"))
        for options in ([], ["--device", "h100-80gb"]):  # by bytes, by times
            self.written("--mesh", "data=8", "--mark", "w*=data,-", *options)
            moves = self.data()["collectives"]["moves"]
            self.assertGreater(len(moves), 3)

            def told():
                shown, = self.value("[...document.querySelectorAll('#time-told [data-move]')].map(one => [Number(one.dataset.move), Number(one.dataset.bytes)])")
                move, text = moves[shown[0]], self.value("document.getElementById('time-told').textContent")
                self.assertEqual(shown[1], move["wire_bytes"])
                self.assertIn("not asked for" if not move["is_asked_for"] else "asked for", text)
                for part in (move["collective"], move["tensor"], move["line"]):
                    self.assertIn(part, text)
                return shown[0]

            self.value("document.querySelector('#time-chart svg').focus()")
            self.browser.press("Home")
            for number in range(len(moves)):
                self.assertEqual(told(), number)
                self.browser.press("ArrowRight")
            self.value("document.querySelector('[aria-label=\"Zoom in\"]').click()")
            self.value("document.getElementById('time-chart').scrollIntoView({block: 'center'})")
            self.browser.press("Home")
            box = self.value("(({x, y, height}) => ({x, y, height}))(document.querySelector('#time-chart .chosen').getBoundingClientRect())")
            self.browser.press("ArrowRight")
            self.assertEqual(told(), 1)
            self.browser.point(box["x"] + 0.2, box["y"] + box["height"] / 2)
            self.assertEqual(told(), 0)

    def test_tables_are_sorted_by_any_column(self):
        lines = ['%0 = input() "x" : f32[4096, 256] marked data,- kind=loader']
        for layer in range(20):
            node = len(lines)
            lines += [f'%{node} = input() "w{layer}" : f32[256, 256] marked {"-," * (layer % 2)}data{",-" * (1 - layer % 2)} kind=parameter  # layer{layer}/mlp',
                      f'%{node + 1} = dot_general(%{node - 1}, %{node}) "bi,io->bo" : f32[4096, 256]  # layer{layer}/mlp']
        self.program.write_text("\n".join([*lines, f"return %{len(lines) - 1}"]))
        found = self.written("--mesh", "data=8")["traffic"]
        self.assertEqual(len(self.value(rows("traffic"))), 12)  # the first
        self.value("document.querySelector('#traffic .more').click()")
        self.assertEqual([row[5] for row in self.value(rows("traffic"))], [one["scope"] for one in found])
        head = "document.querySelectorAll('#traffic th')"
        for column, key in ((0, lambda one: one["wire_bytes"]), (3, lambda one: one["tensors"])):
            for is_up in (False, True):  # numbers begin with the largest
                self.value(f"{head}[{column}].querySelector('button').click()")
                wanted = [key(one) for one in sorted(found, key=key, reverse=not is_up)]
                shown = self.bytes_of("#traffic") if column == 0 else [int(row[3]) for row in self.value(rows("traffic"))]
                self.assertEqual(shown, wanted)
                self.assertEqual(self.value(f"{head}[{column}].getAttribute('aria-sort')"), "ascending" if is_up else "descending")
        self.value(f"{head}[5].querySelector('button').click()")
        self.assertEqual([row[5] for row in self.value(rows("traffic"))], [f"layer{layer}/mlp" for layer in range(20)])  # as people count
        self.assertIsNone(self.value(f"{head}[3].getAttribute('aria-sort')"))
        for column in range(5):
            self.value(f"document.querySelectorAll('#largest th button')[{column}].click()")
            self.assertEqual(len(self.value(rows("largest"))), 10)

    def test_tiles_are_those_of_any_device(self):
        self.program.write_text(UNEVEN)
        self.written("--mesh", "data=4,model=2")
        for number, (label, shape, spec) in enumerate((("blocks/0/table", "10,7", "data,-"), ("blocks/1/cube", "3,4,5", "data,-,model"))):
            self.value(f"document.querySelector('[data-input=\"{number}\"]').click()")
            self.assertIn(label, self.value("document.getElementById('tensor').textContent"))
            devices = self.ok_json("shards", "--mesh", "data=4,model=2", "--shape", shape, "--spec", spec)["devices"]
            boxes = {int(device): piece["box"] for device, piece in devices.items()}
            for device in range(8):
                self.value(f"(() => {{ const rank = document.getElementById('rank'); rank.value = {device}; rank.dispatchEvent(new Event('change')); }})()")
                text = self.value("document.getElementById('tile').textContent")
                box = boxes[device]
                self.assertIn("It has [" + ", ".join(f"{begin}:{end}" for begin, end in box) + "]", text)
                is_empty = any(begin == end for begin, end in box)
                self.assertEqual("no elements" in text, is_empty)
                same = sum(other == box for other in boxes.values()) - 1
                self.assertEqual(f"as {same} other" in text, same > 0, text)
                self.assertEqual(self.value("document.querySelectorAll('.tile.own').length"), 0 if is_empty else 1)
            self.assertEqual(self.value("document.querySelectorAll('.tile').length"),
                             len({json.dumps(box) for box in boxes.values() if all(begin < end for begin, end in box)}))
        # A tile that is pressed is that of its first device.
        self.value("document.querySelectorAll('.tile')[1].dispatchEvent(new MouseEvent('click'))")
        self.assertEqual(self.value("document.querySelectorAll('.tile')[1].classList.contains('own')"), True)
        self.assertIn('because line 2 marks "blocks/1/cube" as data,-,model', self.value("document.querySelector('.why').textContent"))

    def test_names_from_outside_stay_text(self):
        lines = [f'%{number} = input() {json.dumps(name, ensure_ascii=False)} : f32[8, 8] marked data,- kind=parameter'
                 for number, name in enumerate(HOSTILE)]
        count = len(lines)
        lines += [f"%{count + number} = reverse(%{number}) dims=[0] : f32[8, 8]  # scope{number}<script>alert(1)</script>" for number in range(count)]
        lines.append("return " + " ".join(f"%{count + number}" for number in range(count)))
        self.program = self.dir / "<b>&{{data}}.swp"
        self.program.write_text("\n".join(lines))
        found = self.written("--mesh", "data=4")
        self.assertEqual(self.value("typeof window.broken"), "undefined")
        self.assertEqual(self.value("document.getElementById('program').textContent"), str(self.program))
        self.assertEqual(self.value("document.title"), f"{self.program}: plan")
        self.assertEqual(self.data()["plan"], found)
        for number, name in enumerate(HOSTILE):
            self.value(f"document.querySelector('[data-input=\"{number}\"]').click()")
            self.assertEqual(self.value("document.querySelector('#tensor h3').textContent"), name)
        self.assertEqual(self.value("document.querySelectorAll('img, script').length"), 2)  # the page's own scripts
        self.assertEqual(self.browser.errors, [])

    def test_a_phone_shows_all_of_it(self):
        name = "a.very.long.name.of.a.module/" * 6 + "w" * 120
        self.program.write_text(PROGRAM.replace('"w1"', f'"{name}"').replace("# layer0", "# " + "scope" * 40))
        for dark in (False, True):
            for mesh in ("data=8", "data=4,model=2"):
                self.written("--mesh", mesh, "--device", "h100-80gb", "--memory", "1KiB", status=1, width=360, dark=dark)
                self.value("document.querySelectorAll('details').forEach(one => { one.open = true; })")
                self.value("document.querySelectorAll('[aria-label=\"Zoom in\"]').forEach(one => one.click())")
                self.value("document.querySelectorAll('[data-input]').forEach(one => one.click())")
                self.assertLessEqual(self.value("document.documentElement.scrollWidth"), 360)
                self.assertIn("does not fit", self.value("document.getElementById('about').textContent"))
        self.written("--mesh", "data=4,model=2", "--device", "h100-80gb", "--search", "--memory", "1KiB", status=1, width=360)
        self.value("document.querySelectorAll('details').forEach(one => { one.open = true; })")
        self.assertLessEqual(self.value("document.documentElement.scrollWidth"), 360)
        for part in ("search", "changes"):
            self.assertGreater(len(self.value(rows(part))), 1)
            widest = self.value(f"Math.max(...[...document.querySelectorAll('#{part} td, #{part}-part li')].map(one => one.getBoundingClientRect().right))")
            self.assertLessEqual(widest, 360)
        curve = self.data()["curve"]
        self.value("document.getElementById('memory-chart').scrollIntoView({block: 'center'})")
        box = self.value("(({x, y, width, height}) => ({x, y, width, height}))(document.querySelector('#memory-chart svg').getBoundingClientRect())")
        self.browser.tap(box["x"] + box["width"] - 16, box["y"] + box["height"] / 2)
        self.assertIn(curve["points"][-1]["name"], self.value("document.getElementById('memory-under').textContent"))
        colors = []
        for dark in (False, True):
            self.browser.open(self.page, dark=dark)
            colors.append(self.value("getComputedStyle(document.body).backgroundColor"))
        self.assertNotEqual(*colors)

    def seconds_of(self, where):
        return self.value(f"[...document.querySelectorAll('{where} [data-seconds]')].map(one => Number(one.dataset.seconds))")

    def test_what_a_search_chose_is_told_with_what_it_beats(self):
        self.program.write_text(PROGRAM.replace(" marked -,-", "").replace(" marked data,-", ""))
        found = self.written("--mesh", "data=4,model=2", "--device", "h100-80gb", "--search")
        search = found["search"]
        self.assertGreater(len(search["marks"]), 0)
        self.assertEqual(self.value("[...document.querySelectorAll('#search-marks li')].map(one => one.textContent)"),
                         [f"--mark '{mark}'" for mark in search["marks"]])
        self.assertIn(f"The best of {search['plans']} plans, by modelled times on {found['modelled']['machine']}.",
                      self.value("document.getElementById('search-note').textContent"))
        plans = [search["cost"], *search["hand_made"]]
        shown = self.value(rows("search"))
        self.assertEqual([row[0] for row in shown], ["these marks", *(one["plan"] for one in search["hand_made"])])
        self.assertEqual([row[1] for row in shown], ["yes"] * len(plans))
        self.assertEqual(self.bytes_of("#search"), [bytes_ for one in plans for bytes_ in (one["peak_bytes"], one["wire_bytes"])])
        own, *times = self.seconds_of("#search")
        self.assertEqual(own, search["cost"]["modelled_seconds"])
        self.assertEqual(times[::2], [one["modelled_seconds"] for one in search["hand_made"]])
        for longer, one in zip(times[1::2], search["hand_made"], strict=True):
            self.assertEqual(longer, one["modelled_seconds"] - own)
        self.assertGreater(max(times[1::2]), 0)
        self.assertEqual([row[-1] for row in shown], [one["bound_by"] for one in plans])
        self.assertTrue(self.value("document.getElementById('changes-part').hidden"))

    def test_changes_that_fit_are_told(self):
        self.program.write_text(PROGRAM.replace('"w1" : f32[256, 1024] marked -,-', '"w1" : f32[256, 1024] marked -,model'))
        peak = self.written("--mesh", "data=4,model=2")["memory"]["peak_bytes"]
        self.assertTrue(self.value("document.getElementById('changes-part').hidden && document.getElementById('search-part').hidden"))
        for machine in ([], ["--device", "h100-80gb"]):
            found = self.written("--mesh", "data=4,model=2", "--memory", peak - 1, *machine, status=1)
            changes, shown = found["changes"], self.value(rows("changes"))
            self.assertEqual({one["kind"] for one in changes}, {"batch", "marks", "mesh", "recompute"})
            self.assertEqual([row[1] for row in shown], [one["kind"] for one in changes])
            for row, one in zip(shown, changes, strict=True):
                self.assertEqual(row[2], "yes" if one["fits"] else "no")
                for part in one["marks"] if len(one["marks"]) > 1 else [one["change"]]:
                    self.assertIn(part, row[0])
            costs = [one["cost"] for one in changes]
            self.assertEqual(self.bytes_of("#changes"), [bytes_ for one in costs for bytes_ in (one["peak_bytes"], one["wire_bytes"])])
            times = [seconds for one in changes for seconds in (one["cost"]["modelled_seconds"], one["whole_batch_seconds"])] if machine else []
            self.assertEqual(self.seconds_of("#changes"), times)
        # The reason why there is no other batch.
        self.program.write_text('%0 = input() "x" : f32[64, 8] marked data,- kind=loader\n'
                                "%1 = slice(%0) begin=[1, 0] end=[64, 8] stride=[1, 1] : f32[63, 8]\nreturn %1\n")
        found = self.written("--mesh", "data=8", "--memory", "100B", status=1)
        self.assertIn("found a slice", found["batch_refused"])
        self.assertIn(f"No smaller batch: {found['batch_refused']}", self.value("document.getElementById('changes').textContent"))

    def test_a_program_without_inputs_steps_or_traffic_is_a_page_too(self):
        for text in ("%0 = constant() 1 : f32[4]\nreturn %0\n", '%0 = input() "x" : f32[]\nreturn %0\n', '%0 = input() "x" : f32[0, 3]\n%1 = neg(%0) : f32[0, 3]\nreturn %1\n'):
            self.program.write_text(text)
            self.written("--mesh", "data=2", "--device", "tpu-v4")
            self.assertEqual(self.value("document.getElementById('page').hidden"), False)

    def test_without_a_script_it_is_the_text(self):
        for options in ([], ["--device", "h100-80gb", "--search", "--memory", "1KiB"]):
            text = run("plan", self.program, "--mesh", "data=8", *options, "--html", self.page).stdout
            self.assertEqual(text, run("plan", self.program, "--mesh", "data=8", *options).stdout)
            self.assertEqual("the cheapest change of each kind" in text and "these marks" in text, bool(options))
            self.browser.ask("Emulation.setScriptExecutionDisabled", value=True)
            self.browser.open(self.page)
            self.browser.ask("Emulation.setScriptExecutionDisabled", value=False)
            self.assertEqual(self.value("document.querySelector('noscript pre').textContent"), text)


class Written(Cli):
    """What needs no browser."""

    def setUp(self):
        super().setUp()
        self.program, self.page = self.dir / "step.swp", self.dir / "plan.html"
        self.program.write_text(PROGRAM)

    def test_a_large_program_is_a_small_page(self):
        lines = ['%0 = input() "x" : f32[64, 64] marked data,- kind=loader']
        for layer in range(5000):
            node = len(lines)
            lines += [f'%{node} = input() "layers.{layer}.w" : f32[64, 64] marked data,- kind=parameter  # layers/{layer}',
                      f'%{node + 1} = dot_general(%{node - 1}, %{node}) "bi,io->bo" : f32[64, 64]  # layers/{layer}',
                      f'%{node + 2} = tanh(%{node + 1}) : f32[64, 64]  # layers/{layer}']
        self.program.write_text("\n".join([*lines, f"return %{len(lines) - 1}"]))
        found = self.ok_json("plan", self.program, "--mesh", "data=8", "--device", "h100-80gb", "--html", self.page)
        self.assertLess(self.page.stat().st_size, 6 << 20)
        text = self.page.read_text()
        data = json.loads(text.split('<script type="application/json" id="data">')[1].split("</script>")[0])
        curve, memory = data["curve"], found["memory"]
        self.assertLess(len(curve["points"]), curve["steps"])
        totals = [sum(point["bytes"]) for point in curve["points"]]
        self.assertEqual(totals[curve["fullest"]], max(totals))
        self.assertEqual(max(totals) + memory["by_kind"].get("gaps", 0), memory["peak_bytes"])
        moves = data["collectives"]
        self.assertEqual((len(moves["moves"]), moves["left_out"]), (3000, 2000))
        self.assertEqual(sum(one["wire_bytes"] for one in moves["moves"]) + moves["left_out_bytes"], sum(one["wire_bytes"] for one in found["traffic"]))
        inputs = data["inputs"]
        self.assertEqual((len(inputs["rows"]), inputs["left_out"]), (3000, 2001))
        self.assertEqual(sum(one["bytes"] for one in inputs["rows"]) + inputs["left_out_bytes"],
                         memory["by_kind"]["parameter"] + memory["by_kind"]["loader"])

    def test_it_goes_with_a_mesh(self):
        self.fails(2, ["plan: found --html with --devices"], "plan", self.program, "--devices", 8, "--html", self.page)
        self.fails(2, ["found --why and --html, needed one of them"], "plan", self.program, "--mesh", "data=8", "--why", "w1", "--html", self.page)
        self.fails(3, ["--html: ", "cannot be written"], "plan", self.program, "--mesh", "data=8", "--html", self.dir / "no" / "plan.html")


if __name__ == "__main__":
    unittest.main()
