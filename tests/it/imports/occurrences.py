"""When entries of a crontab, or of a Celery application, come next, as other programs see it.

    occurrences.py crontab FILE      by croniter
    occurrences.py celery FOLDER     by Celery's own crontab; proj.py in the folder is the application

Prints a JSON object: for each entry the next COUNT times after FROM, in seconds since 1970.
"""

import json
import sys
from datetime import datetime, timezone
from zoneinfo import ZoneInfo

FROM, COUNT = datetime(2026, 1, 15, tzinfo=timezone.utc), 200


def crontab(path):
    from croniter import croniter

    zone, found = ZoneInfo("UTC"), {}
    for n, line in enumerate(open(path), 1):
        line = line.strip()
        if line.startswith("CRON_TZ="):
            zone = ZoneInfo(line.split("=")[1])
        words = line.split(None, 1 if line.startswith("@") else 5)
        if not line or line.startswith("#") or "=" in words[0] or words[0] == "@reboot" or " L " in line:
            continue
        # A day field that begins with a star restricts nothing by itself.
        times = croniter(" ".join(words[:-1]), FROM.astimezone(zone), implement_cron_bug=True)
        found[f"line {n}"] = [round(times.get_next(float)) for _ in range(COUNT)]
    return found


def celery(folder):
    sys.path.insert(0, folder)
    from celery.schedules import crontab
    from proj import app

    app.finalize()
    found = {}
    for name, entry in app.conf.beat_schedule.items():
        schedule, at, times = entry["schedule"], FROM.astimezone(ZoneInfo(app.conf.timezone)), []
        if isinstance(schedule, crontab):
            while len(times) < COUNT:
                last, delta, _ = schedule.remaining_delta(at)
                at = last + delta
                times.append(round(at.timestamp()))
            found[name] = times
    return found


json.dump({"crontab": crontab, "celery": celery}[sys.argv[1]](sys.argv[2]), sys.stdout)
