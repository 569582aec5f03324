package h2

import "time"

// recvWindow is the window of a connection: how many bytes of all streams may be on their way to this end. It is not there to hold streams
// back, which have windows of their own, but so that what is sent waits where turns are taken, and not in the buffers of the system,
// behind megabytes of others. So it is what keeps the connection busy, twice what arrives in a round trip, and no more.
type recvWindow struct {
	size       int64
	unacked    int64         // bytes that the other side has not been told of
	lastUpdate time.Time     // when it was told last
	roundTrip  time.Duration // of the settings and their acknowledgement, when nothing was in the way; 0: it is not known yet
}

// receive counts n bytes that have arrived, and returns how many more the other side is to be allowed.
func (f *recvWindow) receive(n int64) (grant int64) {
	if f.unacked += n; f.unacked < f.size/2 {
		return 0
	}
	now := time.Now()
	grant, f.unacked = f.unacked, 0
	if took := now.Sub(f.lastUpdate); took > 0 {
		busy := min(2*grant*int64(f.roundTrip)/int64(took), maxConnWindow)
		if more := busy - f.size; more > 0 {
			f.size += more
			grant += more
		}
	}
	f.lastUpdate = now
	return grant
}
