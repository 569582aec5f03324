//go:build !race

package heavy_test

const raceDetector = false
