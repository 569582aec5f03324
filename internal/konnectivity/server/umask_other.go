//go:build !unix

package server

// withUmask calls f: there is no umask here.
func withUmask(_ int, f func()) { f() }
