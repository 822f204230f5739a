//go:build race

package desired_test

const raceDetector = true // which makes everything several times slower
