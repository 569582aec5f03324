package tunnel

import (
	"errors"
	"sync/atomic"
)

// maxReplies is how many bytes of packets other than DATA may wait for the other side to take them.
const maxReplies = 1 << 20

var errFlood = errors.New("the other side of the tunnel asks for answers and does not take them")

// replies are bytes that wait.
type replies struct{ atomic.Int64 }

// Credit implements h2.Creditor.
func (r *replies) Credit(n int) { r.Add(int64(-n)) }
