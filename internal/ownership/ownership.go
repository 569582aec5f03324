// Package ownership checks that no other user can change directories and files with keys. They must belong to the user
// of this process or to root. It must not import other packages of this module.
package ownership

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// Permissions of a file.
const (
	othersWrite = 0o002
	othersRead  = 0o004
	groupWrite  = 0o020
)

// Error describes a directory or file that cannot be trusted, and the command that corrects it.
type Error struct{ Path, Reason, Command string }

func (e *Error) Error() string {
	return fmt.Sprintf("cannot trust %s: %s; check its content, then run: %s", e.Path, e.Reason, e.Command)
}

// CheckDirectory checks a directory. Its owner must be the user of this process or root, and so must the owner of each
// symbolic link on its path. Other users must not have write permission. The warnings describe weak permissions that
// are allowed. One is write permission of the group, which the fsGroup of a Pod sets. Another is a parent directory in
// which all users can rename files.
func CheckDirectory(path string) (warnings []string, err error) {
	path, err = filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	if err := links(path); err != nil {
		return nil, err
	}
	if path, err = filepath.EvalSymlinks(path); err != nil {
		return nil, err
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if err := check(path, info, othersWrite); err != nil {
		return nil, err
	}
	if _, known := owner(info); !known {
		return nil, nil
	}
	if info.Mode()&groupWrite != 0 {
		warnings = append(warnings, fmt.Sprintf("its group can write to %s; unless the group is the fsGroup of a Pod, "+
			"run: chmod g-w %s", path, quote(path)))
	}
	for dir := filepath.Dir(path); ; dir = filepath.Dir(dir) {
		info, err := os.Stat(dir)
		if err == nil && info.Mode()&othersWrite != 0 && info.Mode()&fs.ModeSticky == 0 {
			warnings = append(warnings, fmt.Sprintf(
				"all users can rename files in %s; run: chmod o-w %s", dir, quote(dir)))
		}
		if dir == filepath.Dir(dir) {
			return warnings, nil
		}
	}
}

// CheckDirectories calls CheckDirectory for a directory and for its subdirectories with the given names. It ignores
// subdirectories that do not exist.
func CheckDirectories(path string, below ...string) (warnings []string, err error) {
	warnings, err = CheckDirectory(path)
	for _, name := range below {
		if err != nil {
			return nil, err
		}
		var more []string
		if more, err = CheckDirectory(filepath.Join(path, name)); errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
		warnings = append(warnings, more...)
	}
	slices.Sort(warnings)
	return slices.Compact(warnings), err
}

// links checks the symbolic links on a path.
func links(path string) error {
	for ; path != filepath.Dir(path); path = filepath.Dir(path) {
		if info, err := os.Lstat(path); err == nil && info.Mode()&fs.ModeSymlink != 0 {
			if err := check(path, info, 0); err != nil {
				return err
			}
		}
	}
	return nil
}

// ReadKey reads the file of a private key. Its owner must be the user of this process or root, and other users must not
// have read or write permission. The group may have both, as in a volume with an fsGroup.
func ReadKey(path string) ([]byte, error) { return read(path, othersRead|othersWrite) }

// ReadFile reads a file that other users may read, such as a certificate. Other users must not have write permission.
func ReadFile(path string) ([]byte, error) { return read(path, othersWrite) }

// read opens a file, checks it and reads it. No other file can take its place between the check and the reading.
func read(path string, denied fs.FileMode) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if err := check(path, info, denied); err != nil {
		return nil, err
	}
	return io.ReadAll(f)
}

// check checks the owner, and that other users have none of the denied permissions.
func check(path string, info fs.FileInfo, denied fs.FileMode) error {
	uid, known := owner(info)
	if !known {
		return nil
	}
	if self := os.Geteuid(); uid != 0 && uid != self {
		command := fmt.Sprintf("chown -Rh %d %s", self, quote(path))
		return &Error{path, fmt.Sprintf("it belongs to user %d, and this process runs as user %d", uid, self), command}
	}
	switch granted := info.Mode() & denied; {
	case granted == 0:
		return nil
	case granted&othersWrite != 0:
		return &Error{path, "all users can write to it", fmt.Sprintf("chmod %s %s", without(denied), quote(path))}
	default:
		return &Error{path, "all users can read it", fmt.Sprintf("chmod %s %s", without(denied), quote(path))}
	}
}

// without returns the argument of chmod that removes the denied permissions.
func without(denied fs.FileMode) string {
	if denied&othersRead != 0 {
		return "o-rw"
	}
	return "o-w"
}

var plain = regexp.MustCompile(`^[A-Za-z0-9_./+:@%-]+$`)

// quote returns a path quoted for a shell.
func quote(path string) string {
	if plain.MatchString(path) {
		return path
	}
	return "'" + strings.ReplaceAll(path, "'", `'\''`) + "'"
}
