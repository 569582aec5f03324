package h2

import "time"

// flight is the window of a connection: how many bytes of all streams may be on their way to this end. It is not there to hold streams
// back, which have windows of their own, but so that what is sent waits where turns are taken, and not in the buffers of the system,
// behind megabytes of others. So it is what keeps the connection busy, twice what arrives in a round trip, and no more.
type flight struct {
	window    int64
	landed    int64         // bytes that the other side has not been told of
	since     time.Time     // when it was told last
	roundTrip time.Duration // of the settings and their acknowledgement, when nothing was in the way; 0: it is not known yet
}

// land counts n bytes that have arrived, and returns how many more the other side is to be allowed.
func (f *flight) land(n int64) (grant int64) {
	if f.landed += n; f.landed < f.window/2 {
		return 0
	}
	now := time.Now()
	grant, f.landed = f.landed, 0
	if took := now.Sub(f.since); took > 0 {
		busy := min(2*grant*int64(f.roundTrip)/int64(took), mostInFlight)
		if more := busy - f.window; more > 0 {
			f.window += more
			grant += more
		}
	}
	f.since = now
	return grant
}
