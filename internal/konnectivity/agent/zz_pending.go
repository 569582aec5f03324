package agent

import (
	"github.com/trellis-k8s/trellis/internal/konnectivity/wire"
	"time"
)

type Metrics struct{}

func (*Metrics) Stalled()               {}
func (*Metrics) packet(wire.Type, bool) {}
func (*Metrics) DialFailed(error)       {}
func (*Metrics) Dialled(time.Duration)  {}
func (*Metrics) Closed()                {}
