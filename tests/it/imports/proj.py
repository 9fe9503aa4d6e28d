from datetime import timedelta
from celery import Celery
from celery.schedules import crontab, schedule
app = Celery("proj", broker="memory://")
app.conf.timezone = "Europe/Berlin"
app.conf.beat_schedule = {
    "monday morning": {"task": "proj.greet", "schedule": crontab(hour=7, minute=30, day_of_week=1), "args": ("Ann",)},
    "friday the 13th": {"task": "proj.scare", "schedule": crontab(minute=0, hour="4,16", day_of_month=13, day_of_week="fri")},
    "odd days": {"task": "proj.water", "schedule": crontab(minute={0, 30}, hour=[8, 9], day_of_month="*/2", day_of_week="mon-fri")},
    "over midnight": {"task": "proj.watch", "schedule": crontab(minute="*/20", hour="22-2")},
    "weekend": {"task": "proj.rest", "schedule": crontab(minute=5, hour=12, day_of_week="sat-sun")},
    "poll": {"task": "proj.poll", "schedule": 30.0, "options": {"expires": 20}},
    "often": {"task": "proj.poll", "schedule": schedule(timedelta(minutes=1, milliseconds=500)), "kwargs": {"deep": True}},
}
@app.on_after_finalize.connect
def more(sender, **kwargs):
    sender.add_periodic_task(timedelta(hours=6), sender.signature("proj.prune"), name="prune")
