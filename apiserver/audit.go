package apiserver

import (
	"fmt"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/egressselector"

	"github.com/trellis-k8s/trellis/internal/api"
)

// auditing is the record of requests. The zero value is none.
type auditing struct {
	api.Audit
	backend audit.Backend
	stop    chan struct{}
}

// openAudit begins the record that upstream's options describe. A webhook is called through dial.
func (s *Server) openAudit(dial utilnet.DialFunc) error {
	o := s.config.Audit
	if o == nil {
		return nil
	}
	made := &server.Config{EgressSelector: egressselector.NewEgressSelectorWithMap(map[egressselector.EgressType]utilnet.DialFunc{egressselector.ControlPlane: dial})}
	if err := o.ApplyTo(made); err != nil {
		return fmt.Errorf("audit: %w", err)
	}
	if made.AuditBackend == nil {
		if o.LogOptions.Path != "" || o.WebhookOptions.ConfigFile != "" {
			s.config.Logger.Warn("no requests are audited: there is no --audit-policy-file")
		}
		return nil
	}
	stop := make(chan struct{})
	if err := made.AuditBackend.Run(stop); err != nil {
		return fmt.Errorf("audit: %w", err)
	}
	s.audit = auditing{api.Audit{Sink: made.AuditBackend, Policy: made.AuditPolicyRuleEvaluator}, made.AuditBackend, stop}
	return nil
}

// close returns when all that is left has been written or sent.
func (a *auditing) close() {
	if a.backend != nil {
		close(a.stop)
		a.backend.Shutdown()
	}
}
