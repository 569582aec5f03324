// Command skips reads the output of "go test -json" and prints it as "go test" does. It exits with 1 if a test was
// skipped that the list of allowed skips does not contain. Its argument is the file of that list. It imports no package
// of this module.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: go test -json ... | skips LIST")
		os.Exit(2)
	}
	if err := check(os.Args[1], os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

// check prints the events of in to out. It returns an error that names each skip that the file does not allow.
func check(file string, in io.Reader, out io.Writer) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("read the list of allowed skips: %w", err)
	}
	list, err := parse(string(text))
	if err != nil {
		return fmt.Errorf("parse %s: %w", file, err)
	}
	skipped, err := follow(in, out)
	if err != nil {
		return err
	}
	needs := requirements{root: filepath.Dir(filepath.Dir(file)), lookup: os.LookupEnv, superuser: os.Geteuid() == 0}
	var refused []error
	for _, s := range skipped {
		if why := list.refuses(s, &needs); why != "" {
			refused = append(refused, fmt.Errorf("%s %s was skipped: %s\n%s", s.folder, s.test, why, s.output))
		}
	}
	return errors.Join(refused...)
}
