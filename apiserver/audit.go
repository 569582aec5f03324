package apiserver

import (
	"fmt"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/egressselector"

	"github.com/trellis-k8s/trellis/internal/api/filters"
)

// auditing is the audit backend of the server. The zero value records nothing.
type auditing struct {
	filters.Audit
	backend audit.Backend
	stop    chan struct{}
}

// openAudit starts the audit backend that the options of the upstream package describe. It dials a webhook with the
// function dial.
func (s *Server) openAudit(dial utilnet.DialFunc) error {
	o := s.config.Audit
	if o == nil {
		return nil
	}
	dialers := map[egressselector.EgressType]utilnet.DialFunc{egressselector.ControlPlane: dial}
	made := &server.Config{EgressSelector: egressselector.NewEgressSelectorWithMap(dialers)}
	if err := o.ApplyTo(made); err != nil {
		return fmt.Errorf("audit: %w", err)
	}
	if made.AuditBackend == nil {
		if o.LogOptions.Path != "" || o.WebhookOptions.ConfigFile != "" {
			s.config.Logger.Warn("no requests are audited: --audit-policy-file is not set")
		}
		return nil
	}
	stop := make(chan struct{})
	if err := made.AuditBackend.Run(stop); err != nil {
		return fmt.Errorf("audit: %w", err)
	}
	s.audit = auditing{filters.Audit{Sink: made.AuditBackend, Policy: made.AuditPolicyRuleEvaluator}, made.AuditBackend,
		stop}
	return nil
}

// close stops the backend. It blocks until all pending events have been written or sent.
func (a *auditing) close() {
	if a.backend != nil {
		close(a.stop)
		a.backend.Shutdown()
	}
}
