package api

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/trellis-k8s/trellis/internal/access"
	"github.com/trellis-k8s/trellis/internal/access/pki"
)

const (
	maxFunctions = 8
	maxFiles     = 6
	countGets    = "TRELLIS_COUNT_GETS"
	module       = "github.com/trellis-k8s/trellis/"
)

// A GET of a custom resource enters at most 8 functions of this module in 6 files: one that has been
// read before, by an administrator on a connection that has been used before. They are counted from
// coverage counters, which see closures and what the compiler inlines as well. The test builds
// itself with such counters and runs twice, with 1,000 and with 2,000 GETs: a block of code that was
// entered 1,000 times more often lies on the way of each.
func TestGetEntersFewFunctions(t *testing.T) {
	if n, err := strconv.Atoi(os.Getenv(countGets)); err == nil {
		getTimes(t, n)
		return
	}
	if testing.Short() {
		t.Skip("builds itself with coverage counters")
	}
	dir := t.TempDir()
	program := filepath.Join(dir, "counted")
	build := exec.Command("go", "test", "-c", "-covermode=atomic", "-coverpkg="+module+"internal/...", "-o", program, ".")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	const times = 1000
	once, twice := counted(t, program, times), counted(t, program, 2*times)
	entered, files := map[string]bool{}, map[string]bool{}
	for block, n := range twice {
		if n-once[block] < times {
			continue
		}
		file, name := enclosing(t, block)
		entered[file+" "+name], files[file] = true, true
	}
	var names []string
	for name := range entered {
		names = append(names, name)
	}
	slices.Sort(names)
	text := fmt.Sprintf("%d functions in %d files:\n%s", len(entered), len(files), strings.Join(names, "\n"))
	if len(entered) > maxFunctions || len(files) > maxFiles || len(entered) < 3 {
		t.Error(text)
	}
	t.Log(text)
}

// counted runs the program with some GETs and returns how often each block was entered.
func counted(t *testing.T, program string, gets int) map[string]int {
	profile := program + strconv.Itoa(gets)
	run := exec.Command(program, "-test.run", "^TestGetEntersFewFunctions$", "-test.coverprofile", profile)
	run.Env = append(os.Environ(), countGets+"="+strconv.Itoa(gets))
	if out, err := run.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	data, err := os.ReadFile(profile)
	if err != nil {
		t.Fatal(err)
	}
	blocks := map[string]int{}
	for line := range strings.Lines(string(data)) {
		if f := strings.Fields(line); len(f) == 3 {
			n, err := strconv.Atoi(f[2])
			if err != nil {
				t.Fatal(err)
			}
			blocks[f[0]] = n
		}
	}
	return blocks
}

// enclosing finds the function or the function literal around a block, which a profile names
// as file.go:line.column,line.column.
func enclosing(t *testing.T, block string) (file, name string) {
	file, place, _ := strings.Cut(strings.TrimPrefix(block, module), ":")
	var line, column int
	if _, err := fmt.Sscanf(place, "%d.%d,", &line, &column); err != nil {
		t.Fatalf("%q: %v", block, err)
	}
	set := token.NewFileSet()
	parsed, err := parser.ParseFile(set, filepath.Join("..", "..", file), nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(parsed, func(n ast.Node) bool {
		if n == nil {
			return false
		}
		from, to := set.Position(n.Pos()), set.Position(n.End())
		after := line > from.Line || line == from.Line && column >= from.Column
		before := line < to.Line || line == to.Line && column < to.Column
		if !after || !before {
			return n == parsed
		}
		switch f := n.(type) {
		case *ast.FuncDecl:
			name = f.Name.Name
		case *ast.FuncLit:
			name += fmt.Sprintf(" literal at line %d", from.Line)
		}
		return true
	})
	return file, name
}

// getTimes makes some GETs after one that makes everything known.
func getTimes(t *testing.T, n int) {
	keys, err := pki.Ensure("", nil, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(keys.CA)
	h := withCronTabs(t, func(c *Config) { c.Authenticator = access.NewAuthenticator(roots, false, time.Now) })
	block, _ := pem.Decode(keys.AdminCert)
	admin, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	r := httptest.NewRequest("GET", crontabs+"/a", nil)
	r.Header.Set("Accept", mediaJSON)
	r.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{admin}}
	r = r.WithContext(access.ConnContext(t.Context(), nil))
	for range 1 + n {
		if w := recordFor(h, r); w.Code != 200 || !strings.Contains(w.Body.String(), `"* * * * */5"`) {
			t.Fatalf("%d %s", w.Code, w.Body)
		}
	}
}
