package lint_test

import (
	"path"
	"strconv"
	"strings"
	"testing"
)

// layers lists the folders of the module from the top to the bottom. A package imports packages of its own folder and
// of folders below it. The list of packages in docs/architecture.md is generated from these.
var layers = []string{
	"examples/conversion-webhook",
	"examples/extension-server",
	"cmd/trellis",
	"testserver",
	"apiserver",
	"extension",
	"internal/check",
	"internal/controllers",
	"internal/api",
	"internal/serving",
	"internal/socks5",
	"internal/aggregation",
	"internal/proxy",
	"internal/fixture", // for tests
	"internal/engine",
	"internal/admission",
	"internal/access",
	"internal/kinds",
	"internal/crd/conversion",
	"internal/resource/catalog",
	"internal/crd/definition",
	"internal/resource",
	"internal/merge",
	"internal/crd",
	"internal/egress/selector",
	"internal/egress/credentials",
	"internal/egress",
	"internal/konnectivity", // the only Kubernetes APIs that it uses are Leases and TokenReviews
	"internal/proxydial",
	"internal/storage",
	"internal/object",
	"internal/weight",
	"internal/compute",
	"conversionwebhook",
	"internal/flags",
	"internal/tlsbatch",
	"internal/specialip",
	"internal/ownership",
	"internal/lint/skips",
	"internal/lint/sample",
}

// restricted maps an import path to the folders that may import it. Comments give the reasons that are not obvious.
var restricted = map[string][]string{
	"github.com/cockroachdb/pebble": {"internal/storage"}, // stores on disk
	// commands are only in main
	"github.com/spf13/cobra":    {"cmd/trellis"},
	"k8s.io/kubectl":            {"cmd/trellis"},
	"k8s.io/cli-runtime":        {"cmd/trellis"},
	"k8s.io/component-base/cli": {"cmd/trellis"},
	// types of flags
	"k8s.io/component-base/cli/flag": {"cmd/trellis", "apiserver", "internal/serving", "internal/konnectivity/server"},
	// controllers and webhook callers are clients
	"k8s.io/client-go/rest": {"cmd/trellis", "testserver",
		"apiserver", "extension", "internal/controllers", "internal/admission/webhook", "internal/egress/credentials",
		"internal/konnectivity", "internal/fixture/replicas"},
	"github.com/rogpeppe/go-internal":   {},
	"github.com/anishathalye/porcupine": {"internal/storage/storagetest"},
	"sigs.k8s.io/controller-runtime":    {},
	"testing": {"testserver", "internal/fixture",
		"internal/storage/storagetest"},
	"github.com/trellis-k8s/trellis/internal/fixture":             {},
	"github.com/trellis-k8s/trellis/internal/fixture/program":     {"internal/fixture"},
	"github.com/trellis-k8s/trellis/internal/fixture/outside":     {"internal/fixture"},
	"github.com/trellis-k8s/trellis/internal/storage/storagetest": {"internal/fixture", "internal/storage/storagetest"},
	"go.etcd.io/etcd": {"internal/storage/etcd"},
	// silences etcd's client
	"go.uber.org/zap": {"internal/storage/etcd"},
	"google.golang.org/grpc": {"internal/konnectivity",
		"internal/storage/etcd"},
	"github.com/prometheus/client_golang": {"internal/access/flowcontrol",
		"internal/aggregation", "internal/api", "internal/egress", "internal/konnectivity"},
	"github.com/things-go/go-socks5": {"internal/socks5"},
	"github.com/sony/gobreaker":      {"internal/egress"},
	"sigs.k8s.io/structured-merge-diff": {"internal/api", "internal/engine",
		"internal/merge", "internal/crd", "internal/resource", "internal/kinds", "internal/admission"},
	"github.com/google/gnostic-models": {"internal/api"},
	"github.com/gorilla/websocket":     {"internal/api"},
	"golang.org/x/net/websocket":       {"internal/api"},
	"golang.org/x/sync": {"internal/api", "internal/controllers",
		"testserver"},
	"k8s.io/apiserver/pkg/admission":                       {"internal/admission"},
	"k8s.io/apiserver/pkg/endpoints":                       {},
	"k8s.io/apiserver/pkg/endpoints/filters/impersonation": {"internal/api"}, // impersonation
	"k8s.io/apiserver/pkg/registry":                        {},
	// interfaces of strategies
	"k8s.io/apiserver/pkg/registry/rest": {"internal/kinds", "internal/engine",
		"internal/resource"},
	// built-in kinds, authentication and authorization
	"k8s.io/kubernetes": {"internal/kinds", "internal/access", "internal/admission"},
	"k8s.io/kubernetes/cmd/kube-controller-manager/names": {"internal/controllers"},
	// controllers, as clients
	"k8s.io/kubernetes/pkg/controller":        {"internal/controllers/upstream", "internal/controllers/bootstrap"},
	"k8s.io/kubernetes/pkg/generated/openapi": {"internal/kinds"},
	"k8s.io/kubernetes/pkg/quota/v1/install": {"internal/controllers/upstream",
		"internal/admission"},
	// checks the types of expressions
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating": {"internal/controllers/upstream",
		"internal/admission"},
	"k8s.io/kubernetes/pkg/apis/scheduling/v1": {"internal/controllers/bootstrap"},
	// controllers, as clients
	"k8s.io/kubernetes/pkg/registry/flowcontrol/ensurer": {"internal/controllers/bootstrap"},
	"k8s.io/kubernetes/pkg/controlplane/controller/defaultservicecidr": {"internal/controllers/upstream",
		"internal/controllers/bootstrap"},
	"k8s.io/kubernetes/pkg/controlplane/controller/clusterauthenticationtrust": {"internal/controllers", "apiserver"},
	"k8s.io/kubernetes/pkg/controlplane/controller/legacytokentracking":        {"internal/controllers/upstream"},
	// the running servers
	"k8s.io/kubernetes/pkg/controlplane/controller/apiserverleasegc": {"internal/controllers/upstream"},
	"k8s.io/kubernetes/pkg/controlplane/reconcilers":                 {"apiserver"},
	// conditions and phases
	"k8s.io/kubernetes/pkg/api/v1/pod":           {"testserver", "internal/kinds"},
	"k8s.io/apiserver/pkg/registry/generic/rest": {"internal/proxy/nodes"}, // reads logs
	"k8s.io/kubernetes/pkg/apis/core": {"internal/kinds", "internal/access",
		"internal/admission", "internal/proxy/nodes"},
	"k8s.io/kubernetes/pkg/cluster/ports": {"internal/proxy/nodes"},
	"k8s.io/kubernetes/pkg/features": {"internal/kinds", "internal/access",
		"internal/admission", "internal/proxy/nodes"},
	"k8s.io/kubernetes/pkg/kubelet/client": {"internal/proxy/nodes"},
	// addresses of Nodes and Pods
	"k8s.io/kubernetes/pkg/registry/core/node": {"internal/kinds", "internal/proxy/nodes"},
	"k8s.io/kubernetes/pkg/registry/core/pod":  {"internal/kinds", "internal/proxy/nodes"},
	"k8s.io/kubernetes/pkg/serviceaccount": {"internal/access", "internal/kinds",
		"internal/controllers"},
	"k8s.io/kube-aggregator/pkg/apis/apiregistration/install":           {"internal/kinds"},
	"k8s.io/kube-aggregator/pkg/registry/apiservice":                    {"internal/kinds"},
	"k8s.io/kube-aggregator/pkg/apis/apiregistration/v1/helper":         {"internal/controllers/apiservice"},
	"k8s.io/kube-aggregator/pkg/client":                                 {"internal/controllers"},
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac/bootstrappolicy": {"internal/controllers", "internal/access"},
	// an argument of strategies
	"k8s.io/apiserver/pkg/authorization/authorizer": {"internal/kinds"},
	// values that strategies read from a context
	"k8s.io/apiserver/pkg/endpoints/request": {"internal/engine", "internal/kinds",
		"internal/api"},
	// the Config that audit backends need
	"k8s.io/apiserver/pkg/server": {"apiserver"},
	// flags and backends of audit
	"k8s.io/apiserver/pkg/server/options": {"cmd/trellis", "apiserver", "testserver"},
	// selection of served versions
	"k8s.io/apiserver/pkg/server/resourceconfig": {"internal/kinds"},
	// the type of that selection
	"k8s.io/apiserver/pkg/server/storage": {"internal/kinds", "internal/admission"},
	// dialers for issuers and the audit webhook
	"k8s.io/apiserver/pkg/server/egressselector": {"internal/access", "internal/egress/selector",
		"apiserver"},
	"k8s.io/apiserver/pkg/server/options/authenticationconfig/metrics": {"internal/access"},
	"k8s.io/apiserver/pkg/server/options/authorizationconfig/metrics":  {"internal/access"},
	// CAs and certificates reloaded from files
	"k8s.io/apiserver/pkg/server/dynamiccertificates": {"internal/access",
		"internal/egress/selector", "internal/konnectivity", "internal/serving", "apiserver"},
	"k8s.io/apiserver/pkg/storage":       {},
	"k8s.io/apiserver/pkg/util/feature":  {"internal/admission"}, // feature gates of admission plugins
	"k8s.io/apiserver/pkg/features":      {},
	"k8s.io/apiextensions-apiserver/pkg": {},
	"k8s.io/kube-aggregator/pkg":         {},
	"k8s.io/apiserver/pkg/util/webhook": {"internal/access", "internal/admission",
		"internal/egress/credentials"},
	"k8s.io/apiserver/pkg/authorization":          {"internal/access"},
	"k8s.io/apiserver/pkg/audit":                  {"internal/api", "internal/kinds", "apiserver"},
	"k8s.io/apimachinery/pkg/util/strategicpatch": {"internal/merge"},
}

// unrestricted lists imports that every folder may use, although a path in restricted covers them: types,
// interfaces, generated documents and pure functions.
var unrestricted = []string{
	"k8s.io/apiserver/pkg/authorization/authorizer",
	"k8s.io/apiserver/pkg/endpoints/handlers/negotiation",
	"k8s.io/apiextensions-apiserver/pkg/apihelpers",
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation",
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions",
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/install",
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1",
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1beta1",
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema",
	"k8s.io/apiextensions-apiserver/pkg/generated/openapi",
	"k8s.io/kube-aggregator/pkg/apis/apiregistration",
	"k8s.io/kube-aggregator/pkg/apis/apiregistration/v1",
	"k8s.io/kube-aggregator/pkg/generated/openapi",
}

// nested reports whether a file belongs to a nested module. Nested modules are clients of this module.
func nested(s *source) bool { return within(s.path, "peers") || within(s.path, "cluster") }

// rank returns the index of a folder in layers, or -1.
func rank(folder string) int {
	for i, r := range layers {
		if within(folder, r) {
			return i
		}
	}
	return -1
}

func within(p, folder string) bool { return p == folder || strings.HasPrefix(p, folder+"/") }

// TestImportsGoDown checks that packages import only packages of their own folder and of folders below it.
func TestImportsGoDown(t *testing.T) {
	for _, s := range written(t) {
		if nested(s) {
			continue
		}
		from := rank(s.folder())
		if from < 0 {
			t.Errorf("%s: the folder is not in the list layers; add it", s.path)
			continue
		}
		for _, i := range s.ast.Imports {
			name, _ := strconv.Unquote(i.Path.Value)
			folder, ours := strings.CutPrefix(name, module)
			if ours && rank(folder) < from {
				t.Errorf("%s:%d: %s must not import %s, which is above it", s.path, s.line(i.Pos()), layers[from],
					folder)
			}
		}
	}
}

// TestImportsAreAllowed checks that each import that restricted covers occurs only in the permitted folders.
func TestImportsAreAllowed(t *testing.T) {
	for _, s := range written(t) {
		for _, i := range s.ast.Imports {
			name, _ := strconv.Unquote(i.Path.Value)
			if owners, bound := owners(name); bound && !nested(s) && !allowed(s.folder(), owners) {
				t.Errorf("%s:%d: %s may be imported only in %v", s.path, s.line(i.Pos()), name, owners)
			}
		}
	}
}

// owners returns the folders that may use an import. bound is false if every folder may use it. If several paths in
// restricted cover the import, the longest one applies.
func owners(name string) (folders []string, bound bool) {
	for _, f := range unrestricted {
		if name == f {
			return nil, false
		}
	}
	longest := ""
	for prefix, r := range restricted {
		if covers(prefix, name) && len(prefix) > len(longest) {
			longest, folders, bound = prefix, r, true
		}
	}
	return folders, bound
}

// covers reports whether an import lies below prefix. The major version of a module ("pebble/v2") counts as below.
func covers(prefix, name string) bool { return within(name, prefix) }

func allowed(folder string, owners []string) bool {
	for _, o := range owners {
		if within(folder, o) {
			return true
		}
	}
	return false
}

// TestOnlyStrategies checks that packages use the strategies of the registries in k8s.io/kubernetes, but not their
// stores.
func TestOnlyStrategies(t *testing.T) {
	for _, s := range written(t) {
		for _, i := range s.ast.Imports {
			name, _ := strconv.Unquote(i.Path.Value)
			rest, registry := strings.CutPrefix(name, "k8s.io/kubernetes/pkg/registry/")
			// privilege escalation checks
			escalation := strings.HasSuffix(rest, "/policybased") || rest == "rbac/validation"
			if parts := strings.Split(rest, "/"); registry && !escalation && (len(parts) != 2 || parts[1] == "rest") {
				t.Errorf("%s:%d: %s stores or serves objects: import only its strategies", s.path, s.line(i.Pos()),
					name)
			}
		}
	}
}

// TestNoVagueFolders checks that no folder has a vague name for a collection of helpers.
func TestNoVagueFolders(t *testing.T) {
	for _, s := range sources(t) {
		switch path.Base(s.folder()) {
		case "util", "utils", "common", "helper", "helpers", "misc", "shared", "base":
			t.Errorf("%s: name the folder after its subject", s.path)
		}
	}
}
