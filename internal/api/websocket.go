package api

import (
	"net/http"
	"strings"
	"time"

	"github.com/gorilla/websocket"
)

// bearerProtocol is how browsers send a token; it is no protocol to speak.
const bearerProtocol = "base64url.bearer.authorization.k8s.io."

// webSocket is a watch stream of which each event is one message: text for JSON,
// binary for all else.
type webSocket struct {
	conn *websocket.Conn
	kind int
	left chan struct{}
}

// upgrade turns the connection into a WebSocket; it has answered where that fails.
func (q *request) upgrade() (sink, error) {
	u := websocket.Upgrader{CheckOrigin: func(*http.Request) bool { return true }} // who it is from has been decided
	for _, p := range websocket.Subprotocols(q.r) {
		if !strings.HasPrefix(p, bearerProtocol) {
			u.Subprotocols = append(u.Subprotocols, p)
		}
	}
	q.status = http.StatusSwitchingProtocols
	conn, err := u.Upgrade(q.w, q.r, nil)
	if err != nil {
		q.status = http.StatusBadRequest
		return nil, err
	}
	s := &webSocket{conn: conn, kind: websocket.BinaryMessage, left: make(chan struct{})}
	if q.media.format == formatJSON {
		s.kind = websocket.TextMessage
	}
	go s.listen()
	return s, nil
}

// listen drops what the client says until it leaves, and answers its pings.
func (s *webSocket) listen() {
	defer close(s.left)
	s.conn.SetReadLimit(64 << 10)
	for {
		if _, _, err := s.conn.NextReader(); err != nil {
			return
		}
	}
}

func (s *webSocket) send(frames []byte, ends []int) error {
	if err := s.conn.SetWriteDeadline(time.Now().Add(slowClient)); err != nil {
		return err
	}
	start := 0
	for _, end := range ends {
		if err := s.conn.WriteMessage(s.kind, frames[start:end]); err != nil {
			return err
		}
		start = end
	}
	return nil
}

func (s *webSocket) whenGone(f func()) {
	go func() {
		<-s.left
		f()
	}()
}

func (s *webSocket) tend(time.Time) {}

func (s *webSocket) close() {
	bye := websocket.FormatCloseMessage(websocket.CloseNormalClosure, "")
	_ = s.conn.WriteControl(websocket.CloseMessage, bye, time.Now().Add(time.Second)) // it may have left already
	_ = s.conn.Close()
	<-s.left
}
