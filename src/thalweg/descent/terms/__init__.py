"""Terms h: functions with a proximal step in closed form."""
