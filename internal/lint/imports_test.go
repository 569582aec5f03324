package lint_test

import (
	"path"
	"strconv"
	"strings"
	"testing"
)

// rooms are the folders of the module from the top down. A room imports only from itself and
// from rooms below it.
var rooms = []string{
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
	"internal/socks5", // knows nothing of the rest
	"internal/aggregation",
	"internal/proxy",
	"internal/fixture", // for tests
	"internal/engine",
	"internal/admission",
	"internal/access",
	"internal/kinds",
	"internal/conversion",
	"internal/resource",
	"internal/merge",
	"internal/schema",
	"internal/egress/selector",
	"internal/egress/credentials", // reads kubeconfigs
	"internal/egress",             // is given functions to read by
	"internal/konnectivity",       // knows sockets and no Kubernetes but Leases and reviews of tokens
	"internal/proxydial",
	"internal/storage",
	"internal/object",
	"internal/weight",  // knows Go types and wire formats
	"internal/compute", // knows users by name
	"conversionwebhook",
	"internal/tlsbatch",   // knows connections
	"internal/specialip",  // knows addresses
	"internal/ownership",  // knows owners and permissions of files
	"internal/lint/skips", // reads what go test prints
}

// only are imports that one room alone may have, with the reason for it.
var only = map[string][]string{
	"github.com/cockroachdb/pebble":                                            {"internal/storage"}, // knows disk
	"github.com/spf13/cobra":                                                   {"cmd/trellis"},      // flags are parsed in main only
	"k8s.io/kubectl":                                                           {"cmd/trellis"},
	"k8s.io/cli-runtime":                                                       {"cmd/trellis"},
	"k8s.io/component-base/cli":                                                {"cmd/trellis"},
	"k8s.io/client-go/rest":                                                    {"cmd/trellis", "testserver", "apiserver", "extension", "internal/controllers", "internal/admission/webhook", "internal/egress/credentials", "internal/konnectivity"}, // controllers are clients, and so is who calls a webhook
	"github.com/rogpeppe/go-internal":                                          {},
	"github.com/anishathalye/porcupine":                                        {"internal/storage/storagetest"},
	"sigs.k8s.io/controller-runtime":                                           {},
	"testing":                                                                  {"testserver", "internal/fixture", "internal/storage/storagetest"},
	"github.com/trellis-k8s/trellis/internal/fixture":                          {},
	"github.com/trellis-k8s/trellis/internal/storage/storagetest":              {"internal/fixture", "internal/storage/storagetest"},
	"go.etcd.io/etcd":                                                          {"internal/storage/etcd"},
	"go.uber.org/zap":                                                          {"internal/storage/etcd"}, // silences etcd's client
	"google.golang.org/grpc":                                                   {"internal/konnectivity", "internal/storage/etcd"},
	"github.com/prometheus/client_golang":                                      {"internal/access/flowcontrol", "internal/aggregation", "internal/api", "internal/egress", "internal/konnectivity"},
	"github.com/things-go/go-socks5":                                           {"internal/socks5"},
	"github.com/sony/gobreaker":                                                {"internal/egress"},
	"sigs.k8s.io/structured-merge-diff":                                        {"internal/api", "internal/engine", "internal/merge", "internal/schema", "internal/resource", "internal/kinds", "internal/admission"},
	"github.com/google/gnostic-models":                                         {"internal/api"},
	"github.com/gorilla/websocket":                                             {"internal/api"},
	"golang.org/x/net/websocket":                                               {"internal/api"},
	"golang.org/x/sync":                                                        {"internal/api", "internal/controllers", "testserver"},
	"k8s.io/apiserver/pkg/admission":                                           {"internal/admission"},
	"k8s.io/apiserver/pkg/endpoints":                                           {},
	"k8s.io/apiserver/pkg/endpoints/filters/impersonation":                     {"internal/api"}, // who may act as whom
	"k8s.io/apiserver/pkg/registry":                                            {},
	"k8s.io/apiserver/pkg/registry/rest":                                       {"internal/kinds", "internal/engine", "internal/resource"},  // the interfaces of strategies
	"k8s.io/kubernetes":                                                        {"internal/kinds", "internal/access", "internal/admission"}, // what the kinds of a cluster mean, and who may do what
	"k8s.io/kubernetes/cmd/kube-controller-manager/names":                      {"internal/controllers"},
	"k8s.io/kubernetes/pkg/controller":                                         {"internal/controllers"}, // loops, as clients
	"k8s.io/kubernetes/pkg/generated/openapi":                                  {"internal/kinds"},
	"k8s.io/kubernetes/pkg/quota/v1/install":                                   {"internal/controllers", "internal/admission"},
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating":                  {"internal/controllers", "internal/admission"}, // checks the types of expressions
	"k8s.io/kubernetes/pkg/apis/scheduling/v1":                                 {"internal/controllers"},
	"k8s.io/kubernetes/pkg/registry/flowcontrol/ensurer":                       {"internal/controllers"}, // which are clients too
	"k8s.io/kubernetes/pkg/controlplane/controller/defaultservicecidr":         {"internal/controllers"},
	"k8s.io/kubernetes/pkg/controlplane/controller/clusterauthenticationtrust": {"internal/controllers", "apiserver"},
	"k8s.io/kubernetes/pkg/controlplane/controller/legacytokentracking":        {"internal/controllers"},
	"k8s.io/kubernetes/pkg/api/v1/pod":                                         {"testserver", "internal/kinds"}, // conditions and phases
	"k8s.io/apiserver/pkg/registry/generic/rest":                               {"internal/proxy/nodes"},         // reads logs
	"k8s.io/kubernetes/pkg/apis/core":                                          {"internal/kinds", "internal/access", "internal/admission", "internal/proxy/nodes"},
	"k8s.io/kubernetes/pkg/cluster/ports":                                      {"internal/proxy/nodes"},
	"k8s.io/kubernetes/pkg/features":                                           {"internal/kinds", "internal/access", "internal/admission", "internal/proxy/nodes"},
	"k8s.io/kubernetes/pkg/kubelet/client":                                     {"internal/proxy/nodes"},
	"k8s.io/kubernetes/pkg/registry/core/node":                                 {"internal/kinds", "internal/proxy/nodes"}, // where Nodes and Pods are
	"k8s.io/kubernetes/pkg/registry/core/pod":                                  {"internal/kinds", "internal/proxy/nodes"},
	"k8s.io/kubernetes/pkg/serviceaccount":                                     {"internal/access", "internal/kinds", "internal/controllers"},
	"k8s.io/kube-aggregator/pkg/apis/apiregistration/install":                  {"internal/kinds"},
	"k8s.io/kube-aggregator/pkg/registry/apiservice":                           {"internal/kinds"},
	"k8s.io/kube-aggregator/pkg/apis/apiregistration/v1/helper":                {"internal/controllers"},
	"k8s.io/kube-aggregator/pkg/client":                                        {"internal/controllers"},
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac/bootstrappolicy":        {"internal/controllers", "internal/access"},
	"k8s.io/apiserver/pkg/authorization/authorizer":                            {"internal/kinds"},                                           // what its strategies are given
	"k8s.io/apiserver/pkg/endpoints/request":                                   {"internal/engine", "internal/kinds", "internal/api"},        // what strategies look for in a context
	"k8s.io/apiserver/pkg/server":                                              {"apiserver"},                                                // its Config, which those backends are put into
	"k8s.io/apiserver/pkg/server/options":                                      {"cmd/trellis", "apiserver", "testserver"},                   // flags and backends of audit
	"k8s.io/apiserver/pkg/server/resourceconfig":                               {"internal/kinds"},                                           // which versions are served
	"k8s.io/apiserver/pkg/server/storage":                                      {"internal/kinds", "internal/admission"},                     // and this is its form
	"k8s.io/apiserver/pkg/server/egressselector":                               {"internal/access", "internal/egress/selector", "apiserver"}, // how issuers and audit's webhook are connected to
	"k8s.io/apiserver/pkg/server/options/authenticationconfig/metrics":         {"internal/access"},
	"k8s.io/apiserver/pkg/server/options/authorizationconfig/metrics":          {"internal/access"},
	"k8s.io/apiserver/pkg/server/dynamiccertificates":                          {"internal/access", "internal/controllers", "internal/egress/selector", "internal/konnectivity", "internal/serving", "apiserver"}, // CAs and certificates from files that change
	"k8s.io/apiserver/pkg/storage":                                             {},
	"k8s.io/apiserver/pkg/util/feature":                                        {"internal/admission"}, // what its plugins go by
	"k8s.io/apiserver/pkg/features":                                            {},
	"k8s.io/apiextensions-apiserver/pkg":                                       {},
	"k8s.io/kube-aggregator/pkg":                                               {},
	"k8s.io/apiserver/pkg/util/webhook":                                        {"internal/access", "internal/admission", "internal/egress/credentials"},
	"k8s.io/apiserver/pkg/authorization":                                       {"internal/access"},
	"k8s.io/apiserver/pkg/audit":                                               {"internal/api", "internal/kinds", "apiserver"},
	"k8s.io/apimachinery/pkg/util/strategicpatch":                              {"internal/merge"},
}

// free are exceptions from only: types, interfaces, generated documents and pure functions.
var free = []string{
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

// nested is true of modules of their own, which are clients of this one.
func nested(s *source) bool { return within(s.path, "peers") || within(s.path, "cluster") }

// rank is the place of a folder in rooms, or -1.
func rank(folder string) int {
	for i, r := range rooms {
		if within(folder, r) {
			return i
		}
	}
	return -1
}

func within(p, folder string) bool { return p == folder || strings.HasPrefix(p, folder+"/") }

func TestArrowsGoOneWay(t *testing.T) {
	for _, s := range written(t) {
		if nested(s) {
			continue
		}
		from := rank(s.room())
		if from < 0 {
			t.Errorf("%s lies in no room", s.path)
			continue
		}
		for _, i := range s.ast.Imports {
			name, _ := strconv.Unquote(i.Path.Value)
			folder, ours := strings.CutPrefix(name, module)
			if ours && rank(folder) < from {
				t.Errorf("%s:%d: %s may not import %s, which lies above it", s.path, s.line(i.Pos()), rooms[from], folder)
			}
		}
	}
}

func TestImportsAreAllowed(t *testing.T) {
	for _, s := range written(t) {
		for _, i := range s.ast.Imports {
			name, _ := strconv.Unquote(i.Path.Value)
			if owners, bound := owners(name); bound && !nested(s) && !allowed(s.room(), owners) {
				t.Errorf("%s:%d: %s is for %v only", s.path, s.line(i.Pos()), name, owners)
			}
		}
	}
}

// owners finds the longest entry of only that covers an import.
func owners(name string) (rooms []string, bound bool) {
	for _, f := range free {
		if name == f {
			return nil, false
		}
	}
	longest := ""
	for prefix, r := range only {
		if covers(prefix, name) && len(prefix) > len(longest) {
			longest, rooms, bound = prefix, r, true
		}
	}
	return rooms, bound
}

// covers also sees the major version that a module's path may carry ("pebble/v2").
func covers(prefix, name string) bool { return within(name, prefix) }

func allowed(room string, owners []string) bool {
	for _, o := range owners {
		if within(room, o) {
			return true
		}
	}
	return false
}

// TestStrategiesAlone: of k8s.io/kubernetes the definitions of kinds are used, not what stores and serves them.
func TestStrategiesAlone(t *testing.T) {
	for _, s := range written(t) {
		for _, i := range s.ast.Imports {
			name, _ := strconv.Unquote(i.Path.Value)
			rest, registry := strings.CutPrefix(name, "k8s.io/kubernetes/pkg/registry/")
			judges := strings.HasSuffix(rest, "/policybased") || rest == "rbac/validation" // may somebody give a right away?
			if parts := strings.Split(rest, "/"); registry && !judges && (len(parts) != 2 || parts[1] == "rest") {
				t.Errorf("%s:%d: %s stores or serves", s.path, s.line(i.Pos()), name)
			}
		}
	}
}

func TestNoVagueRooms(t *testing.T) {
	for _, s := range sources(t) {
		switch path.Base(s.room()) {
		case "util", "utils", "common", "helper", "helpers", "misc", "shared", "base":
			t.Errorf("%s: name the folder by what lives there", s.path)
		}
	}
}
