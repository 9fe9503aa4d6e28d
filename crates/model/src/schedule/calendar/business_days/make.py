#!/usr/bin/env python3
"""Makes the table of business days that Roundelay's calendars are compared with, by another implementation.

    pip install numpy holidays
    python3 make.py > 2026.txt

Each line has the business days of a month in a zone, as the moments of 09:00 there: day, and time in UTC. numpy says
which days are business days, the package `holidays` which are public holidays, and zoneinfo when 09:00 is. The folder
has what Roundelay gets: germany.txt (dates), united-states.ics (rules) and japan.ics (events, which this program writes
with --japan).
"""

import sys
from datetime import date, datetime, time, timedelta, timezone
from zoneinfo import ZoneInfo

import holidays
import numpy

YEAR = 2026
PLACES = [("Europe/Berlin", "DE"), ("America/New_York", "US"), ("Asia/Tokyo", "JP")]


def table():
    for zone, country in PLACES:
        off = numpy.array(sorted(holidays.country_holidays(country, years=[YEAR])), dtype="datetime64[D]")
        for month in range(1, 13):
            first = date(YEAR, month, 1)
            days = [first + timedelta(n) for n in range(31) if (first + timedelta(n)).month == month]
            moments = []
            for day in days:
                if numpy.is_busday(numpy.datetime64(day), holidays=off):
                    at = datetime.combine(day, time(9), ZoneInfo(zone)).astimezone(timezone.utc)
                    moments.append(at.strftime("%dT%H:%M"))
            print(f"{zone} {YEAR}-{month:02}:", *moments)


def japan():
    lines = ["BEGIN:VCALENDAR", "VERSION:2.0", "PRODID:-//roundelay//business days//EN"]
    for day, name in sorted(holidays.country_holidays("JP", years=[YEAR], language="en_US").items()):
        after = day + timedelta(1)
        lines += ["BEGIN:VEVENT", f"UID:{day:%Y%m%d}@japan", f"SUMMARY:{name}"]
        lines += [f"DTSTART;VALUE=DATE:{day:%Y%m%d}", f"DTEND;VALUE=DATE:{after:%Y%m%d}", "END:VEVENT"]
    print("\r\n".join([*lines, "END:VCALENDAR"]), end="\r\n")


japan() if "--japan" in sys.argv else table()
