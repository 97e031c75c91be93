"""examples/training_job.cc: ended by SIGTERM in its middle, it goes on where it was, past damaged bytes, too."""

import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import unittest

JOB = os.environ["TRAINING_JOB"]


def ended(text):
    found = re.search(r"ended after step (\d+), w (\S+) (\S+)\n$", text)
    assert found, text
    return int(found[1]), found[2], found[3]


class TrainingJob(unittest.TestCase):
    def run_to_end(self, folder, steps):
        return subprocess.run([JOB, folder, str(steps)], check=True, stdout=subprocess.PIPE, text=True).stdout

    def test_a_signal_in_its_middle(self):
        with tempfile.TemporaryDirectory() as scratch:
            folder = pathlib.Path(scratch) / "run"
            job = subprocess.Popen([JOB, str(folder), str(10**12)], stdout=subprocess.PIPE, text=True)
            for line in job.stdout:
                if line.startswith("step 300,"):
                    job.send_signal(signal.SIGTERM)
                    break
            said = line + job.stdout.read()
            self.assertEqual(job.wait(), 0)
            stopped, *_ = ended(said)
            self.assertGreaterEqual(stopped, 300)
            last = folder / f"step-{stopped:08d}"
            self.assertTrue((last / "manifest.json").exists())
            self.assertLessEqual(len(list(folder.glob("step-*"))), 4)  # the last three, and the best

            again = self.run_to_end(folder, stopped + 150)
            self.assertIn(f"went on after step {stopped}\n", again)
            straight = self.run_to_end(pathlib.Path(scratch) / "straight", stopped + 150)
            self.assertEqual(ended(again), ended(straight))

            # The bytes of the newest step: the one before is taken, and the loss of it is said.
            newest = sorted(folder.glob("step-*"))[-1]
            file = newest / "shards-00000-of-00001.h5"
            data = bytearray(file.read_bytes())
            data[4096] ^= 1
            file.write_bytes(data)
            past = self.run_to_end(folder, stopped + 200)
            self.assertIn(f'{newest.name}": ', past)
            self.assertEqual(ended(past), ended(self.run_to_end(pathlib.Path(scratch) / "other", stopped + 200)))

    def test_words(self):
        done = subprocess.run([JOB], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.assertEqual(done.returncode, 2)
        self.assertIn("usage: ", done.stderr)

    def test_it_is_short(self):
        source = pathlib.Path(__file__).parents[2] / "examples/training_job.cc"
        self.assertLessEqual(len(source.read_text().splitlines()), 80)


if __name__ == "__main__":
    sys.exit(unittest.main())
