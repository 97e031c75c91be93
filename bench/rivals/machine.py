"""On what and when something was measured, for the JSON of these programs and the figure that is made of it."""
import datetime
import os
import re


def measured_on():
    with open("/proc/cpuinfo") as cpuinfo, open("/proc/meminfo") as meminfo:
        model = re.search(r"(?m)^model name\s*: (.*)$", cpuinfo.read())
        memory = int(re.search(r"(?m)^MemTotal:\s*(\d+) kB$", meminfo.read()).group(1)) / 2**20
    name = model.group(1) if model else os.uname().machine
    return {"machine": f"{os.cpu_count()} x {name}, {memory:.0f} GiB", "date": datetime.date.today().isoformat()}
