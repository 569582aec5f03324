package lint_test

import (
	"fmt"
	"go/ast"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/trellis-k8s/trellis/internal/fixture/outside"
)

const requirementsPage = "docs/requirements.md"

// notShown lists requirements that tests cannot show, or cannot show completely. The value is the reason. Clients,
// other programs or readers fulfil these requirements, and not the server. A test that cites one of these IDs shows
// the part that concerns the server.
var notShown = map[string]string{
	"AGG-044": "the difference between the two CAs is advice; AGG-043 and AGG-045 are the behaviour",
	"CNV-016": "port 443 of the Service is advice for users",
	"CNV-037": "the use of in-cluster names in service is advice for users",
	"CNV-038": "localhost needs a webhook on each host, which is advice for users",
	"CNV-060": "the purpose of conversion is advice for authors of webhooks",
	"CRD-024": "kubectl builds the List of kubectl get -o yaml; tests show the list of the server",
	"CRD-026": "kubectl takes the namespace from its context; tests show that the object is stored in the request's " +
		"namespace",
	"HPX-009": "the options of kubectl proxy belong to kubectl; tests show that watches and upgrades pass",
	"KON-014": "kubectl config view belongs to kubectl",
	"KON-015": "kubectl config belongs to kubectl; tests show that the kubeconfig works",
	"KON-017": "the script of the documentation removes its files",
	"OAS-012": "the purpose of the changes cannot be tested; tests show that they change neither the CRD nor validation",
	"PRN-006": "kubectl prints headings in upper case; the server sends the names as declared",
	"PRN-015": "clients style values by the format; tests show that the server passes it on",
	"SCD-006": "names of images and registries are free",
	"SOX-002": "the flags belong to ssh",
	"SOX-006": "kubectl reads HTTPS_PROXY through client-go; SOX-013 shows the same for this program's clients",
	"SOX-007": "kubectl reads proxy-url through client-go; SOX-013 shows the same for this program's clients",
	"SOX-011": "CTRL+C stops ssh, and kubectl fails to connect",
	"SOX-012": "the shell unsets a variable",
	"SOX-014": "the absence of server settings cannot be tested; tests show that requests through a proxy pass",
	"SUB-042": "the interval between polls is a convention of clients; tests show that the two fields are set together",
	"VER-028": "the content of a deprecation warning is advice for authors of CRDs",
}

var (
	requirementID   = regexp.MustCompile(`\b(?:CRD|SCH|VAL|DEF|OAS|PRN|SUB|VER|CNV|AGG|EXT|SCD|HPX|SOX|KON)-[0-9]{3}\b`)
	requirementLine = regexp.MustCompile(`(?m)^- \*\*([A-Z]{3}-[0-9]{3})\*\* (.*?)(?: \*Tests:\* .*)?$`)
	specification   = regexp.MustCompile(`(?m)^(?:- \*\*([A-Z]{3}-[0-9]{3})\*\* (.*)|# ([0-9]+) — (.*)|## [0-9.]+ (.*))$`)
)

// TestRequirementsPage checks that docs/requirements.md lists each requirement with the tests that cite it. If the
// specification is available beside the repository, the texts must be equal to it.
func TestRequirementsPage(t *testing.T) {
	cited := citations(t)
	page := readPage(t, requirementsPage)
	if spec := specifiedRequirements(t); spec != "" {
		intro, _, _ := strings.Cut(page, "\n## ")
		if text := strings.TrimSpace(intro) + "\n" + spec; *update {
			page = text
		} else if withoutTests(page) != text {
			t.Errorf("%s differs from the specification; run go test ./internal/lint -update", requirementsPage)
		}
	}
	listed := map[string]bool{}
	want := requirementLine.ReplaceAllStringFunc(page, func(line string) string {
		m := requirementLine.FindStringSubmatch(line)
		if listed[m[1]] {
			t.Errorf("%s lists %s twice", requirementsPage, m[1])
		}
		listed[m[1]] = true
		return fmt.Sprintf("- **%s** %s *Tests:* %s", m[1], m[2], shownBy(t, m[1], cited[m[1]]))
	})
	for id := range cited {
		if !listed[id] {
			t.Errorf("%s is cited by a test, but %s does not list it", id, requirementsPage)
		}
	}
	for id := range notShown {
		if !listed[id] {
			t.Errorf("notShown has %s, but %s does not list it", id, requirementsPage)
		}
	}
	if len(listed) < 700 {
		t.Errorf("%s lists %d requirements, want at least 700", requirementsPage, len(listed))
	}
	switch {
	case *update:
		if err := os.WriteFile(filepath.Join(root, requirementsPage), []byte(want), 0o600); err != nil {
			t.Fatal(err)
		}
	case readPage(t, requirementsPage) != want:
		t.Errorf("the tests in %s are outdated; run go test ./internal/lint -update", requirementsPage)
	}
}

// shownBy returns the links to the tests that cite a requirement.
func shownBy(t *testing.T, id string, tests map[string]string) string {
	t.Helper()
	var links []string
	for _, name := range slices.Sorted(maps.Keys(tests)) {
		links = append(links, fmt.Sprintf("[%s](../%s)", name, tests[name]))
	}
	if reason := notShown[id]; reason != "" {
		links = append(links, "not shown: "+reason)
	}
	if len(links) == 0 {
		t.Errorf("no test cites %s", id)
	}
	return strings.Join(links, ", ")
}

// citations returns the tests that cite each requirement, as a map from requirement to name to path. The name is
// that of a test function or of a file. The path is that of the file.
func citations(t *testing.T) map[string]map[string]string {
	t.Helper()
	all := map[string]map[string]string{}
	add := func(text, name, file string) {
		for _, id := range requirementID.FindAllString(text, -1) {
			if all[id] == nil {
				all[id] = map[string]string{}
			}
			all[id][name] = file
		}
	}
	for _, s := range sources(t) {
		if s.test && !within(s.folder(), "internal/lint") {
			citationsOfGo(s, add)
		}
	}
	err := filepath.WalkDir(root, func(p string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.Contains(filepath.ToSlash(p), "/testdata/") {
			return err
		}
		data, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, p)
		add(string(data), path.Base(filepath.ToSlash(p)), filepath.ToSlash(rel))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// citationsOfGo calls add for each declaration in a test file. The text includes the comments before the
// declaration.
func citationsOfGo(s *source, add func(text, name, file string)) {
	end := 0
	for i, d := range s.ast.Decls {
		start := end
		if end = s.fset.Position(d.End()).Offset; i == len(s.ast.Decls)-1 {
			end = len(s.text)
		}
		name := path.Base(s.path)
		if f, ok := d.(*ast.FuncDecl); ok && regexp.MustCompile(`^(Test|Fuzz)[A-Z]`).MatchString(f.Name.Name) {
			name = f.Name.Name
		}
		add(s.text[start:end], name, s.path)
	}
}

// specifiedRequirements returns the headings and requirements of the specification, or "" where it is not available.
func specifiedRequirements(t *testing.T) string {
	t.Helper()
	pages, err := filepath.Glob(outside.Path("spec/[0-9]*.md"))
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range specification.FindAllStringSubmatch(string(text), -1) {
			switch {
			case m[1] != "":
				fmt.Fprintf(&b, "- **%s** %s\n", m[1], strings.TrimSpace(m[2]))
			case m[3] != "":
				fmt.Fprintf(&b, "\n## %s %s\n", m[3], m[4])
			default:
				fmt.Fprintf(&b, "\n### %s\n\n", m[5])
			}
		}
	}
	return b.String()
}

// withoutTests removes the links to tests from the requirements page.
func withoutTests(page string) string { return requirementLine.ReplaceAllString(page, "- **$1** $2") }
