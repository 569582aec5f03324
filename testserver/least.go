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

// Recording keeps a record of all requests, for LeastRole.
func Recording() Option {
	return func(s *Server) {
		s.audit = filepath.Join(s.t.TempDir(), "audit.log")
		Audit(s.audit, "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\nrules: [{level: Metadata}]")(s)
	}
}

// Audit has the events that a Policy of audit.k8s.io/v1 asks for written to a file.
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

// LeastRole is the least ClusterRole that allows what a user has asked for, allowed or not, as YAML: of the client
// configuration that User has returned, or the administrator's for "kubernetes-admin". It needs Recording, and ends the server,
// which writes its record to the end.
func (s *Server) LeastRole(name string) string {
	s.t.Helper()
	if s.audit == "" {
		s.t.Fatal("testserver: LeastRole needs Recording")
	}
	s.Stop()
	record, err := os.ReadFile(s.audit)
	if err != nil {
		s.t.Fatalf("testserver: %v", err)
	}
	verbs := map[asked]map[string]bool{}
	for line := range bytes.Lines(record) {
		var e auditv1.Event
		if err := json.Unmarshal(line, &e); err != nil {
			s.t.Fatalf("testserver: audit record: %v", err)
		}
		who := e.User.Username
		if e.ImpersonatedUser != nil {
			who = e.ImpersonatedUser.Username
		}
		if who != name || e.ObjectRef == nil {
			continue
		}
		of := asked{e.ObjectRef.APIGroup, e.ObjectRef.Resource, e.ObjectRef.Subresource}
		if verbs[of] == nil {
			verbs[of] = map[string]bool{}
		}
		verbs[of][e.Verb] = true
	}
	return s.role(name, verbs)
}

// asked is what a request was about.
type asked struct{ group, resource, subresource string }

func (s *Server) role(name string, verbs map[asked]map[string]bool) string {
	role := rbacv1.ClusterRole{TypeMeta: metav1.TypeMeta{APIVersion: rbacv1.SchemeGroupVersion.String(), Kind: "ClusterRole"}, ObjectMeta: metav1.ObjectMeta{Name: name}}
	for of, set := range verbs {
		resource := of.resource
		if of.subresource != "" {
			resource += "/" + of.subresource
		}
		role.Rules = append(role.Rules, rbacv1.PolicyRule{APIGroups: []string{of.group}, Resources: []string{resource}, Verbs: slices.Sorted(maps.Keys(set))})
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
