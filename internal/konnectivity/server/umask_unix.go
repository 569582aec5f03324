//go:build unix

package server

import "syscall"

// withUmask calls f while new files lack the given permissions. That is so for the whole process: it is for the start, when nothing
// else makes files.
func withUmask(mask int, f func()) {
	defer syscall.Umask(syscall.Umask(mask))
	f()
}
