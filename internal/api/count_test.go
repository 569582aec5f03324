package api

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const (
	countGetsEnv = "TRELLIS_COUNT_GETS"
	module       = "github.com/trellis-k8s/trellis/"
	countsIn     = "FUNCTIONS.md"
)

// TestGetIsAsDocumented checks the table in the page countsIn: the numbers of functions and files that a GET of a
// custom resource enters. It counts the functions of this module, including closures. The numbers come from
// coverage counters, because these also count inlined functions. The test builds itself with the counters, and runs
// without GETs and with 500 GETs. If each GET enters a block, the counter of the block is 500 higher.
func TestGetIsAsDocumented(t *testing.T) {
	if scenario := os.Getenv(countGetsEnv); scenario != "" {
		runGets(t, scenario)
		return
	}
	if testing.Short() {
		t.Skip("the test builds itself with coverage counters, which takes long")
	}
	program := filepath.Join(t.TempDir(), "counted")
	build := exec.Command("go", "test", "-c", "-covermode=atomic", "-coverpkg="+module+"internal/...", "-o", program,
		".")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	table := "| a GET by | of an object | as JSON | as a Table |\n|---|---|---|---|\n"
	for _, user := range []string{"system:masters", "other users"} {
		for _, state := range []string{"read before", "just written"} {
			table += fmt.Sprintf("| %s | %s |", user, state)
			for _, form := range []string{"JSON", "Table"} {
				table += " " + countEntered(t, program, strings.Join([]string{user, state, form}, ",")) + " |"
			}
			table += "\n"
		}
	}
	doc, err := os.ReadFile(countsIn)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(doc), table) {
		t.Errorf("the table in %s is out of date, replace it with:\n%s", countsIn, table)
	}
}

// countEntered returns the numbers of functions and files that each GET of a scenario enters. It runs the scenario
// twice and counts the functions that occur in both runs. Other functions vary between runs, because of map order
// and background loops.
func countEntered(t *testing.T, program, scenario string) string {
	names, files := enteredFunctions(t, program, scenario), map[string]bool{}
	again := enteredFunctions(t, program, scenario)
	names = slices.DeleteFunc(names, func(name string) bool { return !slices.Contains(again, name) })
	for _, name := range names {
		file, _, _ := strings.Cut(name, " ")
		files[file] = true
	}
	t.Logf("%s: %d functions in %d files:\n%s", scenario, len(names), len(files), strings.Join(names, "\n"))
	return fmt.Sprintf("%d/%d", len(names), len(files))
}

// enteredFunctions returns the functions with a block that every GET enters. Each element is the file and the
// function, separated by a space.
func enteredFunctions(t *testing.T, program, scenario string) []string {
	const times = 500
	without := blockCounts(t, program, scenario, times, 0)
	with := blockCounts(t, program, scenario, times, times)
	functions := map[string]bool{}
	for block, n := range with {
		if n-without[block] >= times*9/10 {
			file, name := enclosingFunction(t, block)
			functions[file+" "+name] = true
		}
	}
	return slices.Sorted(maps.Keys(functions))
}

// blockCounts runs the program and returns the number of entries of each block.
func blockCounts(t *testing.T, program, scenario string, times, gets int) map[string]int {
	profile := program + ".profile"
	run := exec.Command(program, "-test.run", "^TestGetIsAsDocumented$", "-test.coverprofile", profile)
	run.Env = append(os.Environ(), fmt.Sprintf("%s=%s,%d,%d", countGetsEnv, scenario, times, gets))
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

// enclosingFunction returns the function or the function literal that contains a block. block has the form that
// coverage profiles use: file.go:line.column,line.column.
func enclosingFunction(t *testing.T, block string) (file, name string) {
	file, position, _ := strings.Cut(strings.TrimPrefix(block, module), ":")
	var line, column int
	if _, err := fmt.Sscanf(position, "%d.%d,", &line, &column); err != nil {
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
			if name = f.Name.Name; f.Recv != nil {
				name = types.ExprString(f.Recv.List[0].Type) + "." + name
			}
		case *ast.FuncLit:
			name += fmt.Sprintf(" literal at line %d", from.Line)
		}
		return true
	})
	return file, name
}

// runGets runs a scenario of the form "user,state,form,times,gets". The numbers times and
// gets specify how often it prepares the object and how many GETs it sends.
func runGets(t *testing.T, scenario string) {
	part := strings.Split(scenario, ",")
	times, err := strconv.Atoi(part[3])
	if err != nil {
		t.Fatal(err)
	}
	gets, err := strconv.Atoi(part[4])
	if err != nil {
		t.Fatal(err)
	}
	h, admin, reader := withCallers(t)
	client, accept, want := reader, "", `"* * * * */5"`
	if part[0] == "system:masters" {
		client = admin
	}
	if part[2] == "Table" {
		accept, want = kubectlAccept, `"rows":[{"cells":["a","* * * * */5",`
	}
	r := client.get(crontabs+"/a", accept)
	serve(h, r)
	for i := range times {
		if part[1] == "just written" {
			patch := fmt.Sprintf(`{"spec":{"replicas":%d}}`, 1000+i)
			h.want(200, "PATCH", crontabs+"/a", patch, "Content-Type: application/merge-patch+json")
		}
		if i >= gets {
			continue
		}
		if w := serve(h, r); w.Code != 200 || !strings.Contains(w.Body.String(), want) {
			t.Fatalf("GET: got %d %s, want 200 with %s", w.Code, w.Body, want)
		}
	}
}
