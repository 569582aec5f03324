package testserver

import (
	"bytes"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"k8s.io/apiserver/pkg/server/options"
	"sigs.k8s.io/yaml"
)

// Recording records all requests in an audit log, for LeastRole.
func Recording() Option {
	return func(s *Server) {
		s.audit = filepath.Join(s.t.TempDir(), "audit.log")
		Audit(s.audit, "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\nrules: [{level: "+
			"Metadata}]")(s)
	}
}

// Audit writes audit events to a file. The parameter log is the path of the file. The parameter policy is a Policy of
// audit.k8s.io/v1 that selects the events.
func Audit(log, policy string) Option {
	return func(s *Server) {
		file := filepath.Join(s.t.TempDir(), "policy.yaml")
		if err := os.WriteFile(file, []byte(policy), 0o600); err != nil {
			s.t.Fatalf("testserver: %v", err)
		}
		o := options.NewAuditOptions()
		o.PolicyFile, o.LogOptions.Path = file, log
		s.config.Audit = o
	}
}

// LeastRole returns a minimal ClusterRole in YAML. The ClusterRole permits all requests that a user has sent,
// including requests that were forbidden. The name is that of a user created by User, or "kubernetes-admin" for the
// administrator. LeastRole requires the option Recording. It stops the server, so that the audit log is complete.
func (s *Server) LeastRole(name string) string {
	s.t.Helper()
	if s.audit == "" {
		s.t.Fatal("testserver: LeastRole requires Recording")
	}
	s.Stop()
	record, err := os.ReadFile(s.audit)
	if err != nil {
		s.t.Fatalf("testserver: %v", err)
	}
	verbs := map[requestedResource]map[string]bool{}
	for line := range bytes.Lines(record) {
		var e auditv1.Event
		if err := json.Unmarshal(line, &e); err != nil {
			s.t.Fatalf("testserver: decode audit event: %v", err)
		}
		user := e.User.Username
		if e.ImpersonatedUser != nil {
			user = e.ImpersonatedUser.Username
		}
		if user != name || e.ObjectRef == nil {
			continue
		}
		of := requestedResource{e.ObjectRef.APIGroup, e.ObjectRef.Resource, e.ObjectRef.Subresource}
		if verbs[of] == nil {
			verbs[of] = map[string]bool{}
		}
		verbs[of][e.Verb] = true
	}
	return s.role(name, verbs)
}

// requestedResource identifies the resource of a request.
type requestedResource struct{ group, resource, subresource string }

func (s *Server) role(name string, verbs map[requestedResource]map[string]bool) string {
	role := rbacv1.ClusterRole{TypeMeta: metav1.TypeMeta{APIVersion: rbacv1.SchemeGroupVersion.String(),
		Kind: "ClusterRole"}, ObjectMeta: metav1.ObjectMeta{Name: name}}
	for of, set := range verbs {
		resource := of.resource
		if of.subresource != "" {
			resource += "/" + of.subresource
		}
		role.Rules = append(role.Rules, rbacv1.PolicyRule{APIGroups: []string{of.group}, Resources: []string{resource},
			Verbs: slices.Sorted(maps.Keys(set))})
	}
	slices.SortFunc(role.Rules, func(a, b rbacv1.PolicyRule) int {
		return slices.Compare(append(a.APIGroups[:1:1], a.Resources...), append(b.APIGroups[:1:1], b.Resources...))
	})
	text, err := yaml.Marshal(role)
	if err != nil {
		s.t.Fatalf("testserver: %v", err)
	}
	return string(text)
}
