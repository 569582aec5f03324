// Command sample prints a random sample of the comments and messages in this repository. Readers mark the texts
// that they have to read twice. Its argument is the seed of the random choice and should be the hash of the commit.
// It imports no package of this module.
package main

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"hash/fnv"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// minWords is the minimum number of words of a text in the sample.
const minWords = 6

// text is a comment or a message.
type text struct {
	position string
	text     string
}

func main() {
	n := flag.Int("n", 40, "number of comments and number of messages in the sample")
	flag.Parse()
	if flag.NArg() != 1 {
		fmt.Fprintln(os.Stderr, "usage: sample [-n NUMBER] COMMIT")
		os.Exit(2)
	}
	comments, messages, err := collect(".")
	if err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
	seed := fnv.New64a()
	_, _ = seed.Write([]byte(flag.Arg(0)))
	random := rand.New(rand.NewPCG(seed.Sum64(), 0))
	for i, all := range [][]text{comments, messages} {
		fmt.Printf("# %s\n\n", []string{"Comments", "Messages"}[i])
		random.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		for i, x := range all[:min(*n, len(all))] {
			fmt.Printf("%d. %s\n%s\n\n", i+1, x.position, x.text)
		}
	}
}

// collect returns the comments of all Go files below a folder. It returns the messages only of files that are not
// tests.
func collect(root string) (comments, messages []text, err error) {
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (d.Name() == ".git" || d.Name() == "bin" || d.Name() == "testdata") {
			return filepath.SkipDir
		}
		if filepath.Ext(path) != ".go" {
			return nil
		}
		fset := token.NewFileSet()
		file, err := parser.ParseFile(fset, path, nil, parser.ParseComments)
		if err != nil || ast.IsGenerated(file) {
			return err
		}
		for _, c := range file.Comments {
			if long(c.Text()) {
				comments = append(comments, text{fset.Position(c.Pos()).String(), strings.TrimSpace(c.Text())})
			}
		}
		if !strings.HasSuffix(path, "_test.go") {
			messages = append(messages, messagesOf(fset, file)...)
		}
		return nil
	})
	return comments, messages, err
}

func long(s string) bool { return len(strings.Fields(s)) >= minWords }

// messagesOf returns the strings of a file that read like sentences. Parts that are joined by + count as one string.
func messagesOf(fset *token.FileSet, file *ast.File) (all []text) {
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.ImportSpec:
			return false
		case *ast.BinaryExpr, *ast.BasicLit:
			if s, ok := joined(n.(ast.Expr)); ok {
				if long(s) {
					all = append(all, text{fset.Position(n.Pos()).String(), s})
				}
				return false
			}
		}
		return true
	})
	return all
}

// joined returns the text of a string literal, or of several that are joined by +. Other operands become "…".
func joined(e ast.Expr) (s string, ok bool) {
	switch e := e.(type) {
	case *ast.BasicLit:
		if e.Kind != token.STRING {
			return "", false
		}
		s, err := strconv.Unquote(e.Value)
		return s, err == nil
	case *ast.BinaryExpr:
		if e.Op != token.ADD {
			return "", false
		}
		left, isText := joined(e.X)
		right, isTextToo := joined(e.Y)
		if !isText && !isTextToo {
			return "", false
		}
		if !isText {
			left = "…"
		}
		if !isTextToo {
			right = "…"
		}
		return left + right, true
	}
	return "", false
}
