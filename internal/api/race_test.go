//go:build race

package api

// raceEnabled reports whether the race detector is enabled. The detector needs additional memory.
const raceEnabled = true
