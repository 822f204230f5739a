package engine

const (
	RepeatPeriod = repeatPeriod
	DecidePeriod = decidePeriod
)
