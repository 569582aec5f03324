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
	countGets = "TRELLIS_COUNT_GETS"
	module    = "github.com/trellis-k8s/trellis/"
	countsIn  = "../../docs/architecture.md"
)

// What docs/architecture.md says is entered for a GET of a custom resource is true: functions of this module, closures
// included, and the files they are in. They are counted from coverage counters, which see what the compiler inlines as
// well. The test builds itself with such counters and runs with and without 500 GETs: a block of code that was entered
// 500 times more often lies on the way of each.
func TestGetIsAsDocumented(t *testing.T) {
	if scene := os.Getenv(countGets); scene != "" {
		playGets(t, scene)
		return
	}
	if testing.Short() {
		t.Skip("builds itself with coverage counters")
	}
	program := filepath.Join(t.TempDir(), "counted")
	build := exec.Command("go", "test", "-c", "-covermode=atomic", "-coverpkg="+module+"internal/...", "-o", program, ".")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	table := "| a GET by | of an object | as JSON | as a Table |\n|---|---|---|---|\n"
	for _, who := range []string{"system:masters", "anybody else"} {
		for _, what := range []string{"read before", "just written"} {
			table += fmt.Sprintf("| %s | %s |", who, what)
			for _, form := range []string{"JSON", "Table"} {
				table += " " + entered(t, program, strings.Join([]string{who, what, form}, ",")) + " |"
			}
			table += "\n"
		}
	}
	doc, err := os.ReadFile(countsIn)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(doc), table) {
		t.Errorf("the table in %s is to be replaced by what has been counted:\n%s", countsIn, table)
	}
}

// entered counts what each GET of a scene enters. How often a block is entered otherwise differs a little from run to run,
// by the order of a map or by a loop in the background, so only what is found twice counts.
func entered(t *testing.T, program, scene string) string {
	names, files := found(t, program, scene), map[string]bool{}
	again := found(t, program, scene)
	names = slices.DeleteFunc(names, func(name string) bool { return !slices.Contains(again, name) })
	for _, name := range names {
		file, _, _ := strings.Cut(name, " ")
		files[file] = true
	}
	t.Logf("%s: %d functions in %d files:\n%s", scene, len(names), len(files), strings.Join(names, "\n"))
	return fmt.Sprintf("%d functions in %d files", len(names), len(files))
}

// found lists the functions with a block that is entered once more for each GET, after their files.
func found(t *testing.T, program, scene string) []string {
	const times = 500
	without, with := counted(t, program, scene, times, 0), counted(t, program, scene, times, times)
	functions := map[string]bool{}
	for block, n := range with {
		if n-without[block] >= times*9/10 {
			file, name := enclosing(t, block)
			functions[file+" "+name] = true
		}
	}
	return slices.Sorted(maps.Keys(functions))
}

// counted runs the program and returns how often each block was entered.
func counted(t *testing.T, program, scene string, times, gets int) map[string]int {
	profile := program + ".profile"
	run := exec.Command(program, "-test.run", "^TestGetIsAsDocumented$", "-test.coverprofile", profile)
	run.Env = append(os.Environ(), fmt.Sprintf("%s=%s,%d,%d", countGets, scene, times, gets))
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

// playGets plays "who,what,form,times,gets": it prepares as many GETs as times says, and makes as many as gets says.
func playGets(t *testing.T, scene string) {
	part := strings.Split(scene, ",")
	times, err := strconv.Atoi(part[3])
	if err != nil {
		t.Fatal(err)
	}
	gets, err := strconv.Atoi(part[4])
	if err != nil {
		t.Fatal(err)
	}
	h, admin, reader := withCallers(t)
	who, accept, want := reader, "", `"* * * * */5"`
	if part[0] == "system:masters" {
		who = admin
	}
	if part[2] == "Table" {
		accept, want = kubectlAccept, `"rows":[{"cells":["a","* * * * */5",`
	}
	r := who.get(crontabs+"/a", accept)
	recordFor(h, r)
	for i := range times {
		if part[1] == "just written" {
			patch := fmt.Sprintf(`{"spec":{"replicas":%d}}`, 1000+i)
			h.want(200, "PATCH", crontabs+"/a", patch, "Content-Type: application/merge-patch+json")
		}
		if i >= gets {
			continue
		}
		if w := recordFor(h, r); w.Code != 200 || !strings.Contains(w.Body.String(), want) {
			t.Fatalf("%d %s", w.Code, w.Body)
		}
	}
}
