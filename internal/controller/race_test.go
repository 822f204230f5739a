//go:build race

package controller

const raceDetector = true // which makes everything several times slower
