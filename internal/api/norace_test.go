//go:build !race

package api

// raceEnabled is true where the race detector takes memory of its own.
const raceEnabled = false
