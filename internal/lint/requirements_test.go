package lint_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// untested lists what no test of this repository can show: the requirements, or parts of them, that no code of Trellis
// implements. Only clients, other programs, manifests of users or readers act on them. A test that cites one of these IDs shows the
// rest of its sentence.
var untested = map[string]string{
	"AGG-044": "that the two CAs normally differ is advice; AGG-043 and AGG-045 are the behaviour",
	"CNV-016": "that the Service should expose port 443 is advice for users",
	"CNV-037": "in-cluster names belong into service: advice for users",
	"CNV-038": "that localhost works only if each host runs the webhook is advice for users",
	"CNV-060": "that conversion is not meant for validation is advice for authors of webhooks",
	"CRD-024": "the List of kubectl get -o yaml is made by kubectl; the server's own list is shown",
	"CRD-026": "kubectl takes the namespace from its context; that the object is stored in the namespace of the request is shown",
	"HPX-009": "the options of kubectl proxy are kubectl's; that watches and upgrades pass is shown",
	"KON-014": "kubectl config view is kubectl's",
	"KON-015": "kubectl config is kubectl's; that the kubeconfig works is shown",
	"KON-017": "the documentation's script removes its files",
	"OAS-012": "what the changes are good for; that they change neither the CRD nor validation is shown",
	"PRN-006": "kubectl prints headings in upper case; the server sends the names as given",
	"PRN-015": "clients style by the format; that it is passed on is shown",
	"SCD-006": "image names and registries are free",
	"SOX-002": "the flags of ssh",
	"SOX-006": "kubectl reads HTTPS_PROXY by client-go; SOX-013 is the same of our own clients",
	"SOX-007": "kubectl reads proxy-url by client-go; SOX-013 is the same of our own clients",
	"SOX-011": "CTRL+C ends ssh, and kubectl fails to connect",
	"SOX-012": "the shell unsets a variable",
	"SOX-014": "that the server needs nothing special; that requests through a proxy pass is shown",
	"SUB-042": "the interval between polls is a convention of clients; that the two fields are set together is shown",
	"VER-028": "what a deprecation warning should name is advice for authors of CRDs",
}

var requirement = regexp.MustCompile(`(?m)^- \*\*([A-Z]{3}-\d{3})\*\*`)

// The list above names requirements of the specification, where that is beside the module.
func TestUntestedRequirementsExist(t *testing.T) {
	pages, err := filepath.Glob(filepath.Join(root, "../shared/spec/[0-9]*.md"))
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{}
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range requirement.FindAllSubmatch(text, -1) {
			known[string(m[1])] = true
		}
	}
	for id, why := range untested {
		if len(pages) > 0 && !known[id] || strings.TrimSpace(why) == "" {
			t.Errorf("%s: %q", id, why)
		}
	}
}
