//go:build race

package handlers

// raceEnabled reports whether the race detector is enabled. The detector needs additional memory.
const raceEnabled = true
