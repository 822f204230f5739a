package engine

const RepeatPeriod = repeatPeriod
