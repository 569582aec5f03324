package flags

import (
	"fmt"
	"os"

	"github.com/spf13/pflag"
)

// pairOf is the annotation of a flag with the name of the flag that must be set with it.
const pairOf = "trellis_must_be_set_with"

// Pair specifies that two declared flags must be set together, such as the files of a certificate and its key. Both
// flags must have an empty default.
func Pair(fs *pflag.FlagSet, name, other string) {
	if err := fs.SetAnnotation(name, pairOf, []string{other}); err != nil {
		panic(err) // the flag is not declared
	}
}

// CheckPairs returns an error if only one flag of a Pair is set.
func CheckPairs(fs *pflag.FlagSet) (err error) {
	fs.VisitAll(func(f *pflag.Flag) {
		for _, other := range f.Annotations[pairOf] {
			if (f.Value.String() == "") != (fs.Lookup(other).Value.String() == "") && err == nil {
				err = fmt.Errorf("--%s and --%s must be set together", f.Name, other)
			}
		}
	})
	return err
}

// CheckFiles returns an error if a file that one of the flags specifies does not exist.
func CheckFiles(fs *pflag.FlagSet, names ...string) error {
	for _, name := range names {
		file := fs.Lookup(name).Value.String()
		if _, err := os.Stat(file); file != "" && err != nil {
			return fmt.Errorf("--%s: %w", name, err)
		}
	}
	return nil
}
