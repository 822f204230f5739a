//go:build !race

package desired_test

const raceDetector = false
