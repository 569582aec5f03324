//go:build unix

package ownership

import (
	"io/fs"
	"syscall"
)

// owner returns the user ID of a file's owner.
func owner(info fs.FileInfo) (uid int, known bool) {
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, false
	}
	return int(stat.Uid), true
}
