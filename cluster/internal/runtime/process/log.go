package process

import (
	"bytes"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// longest is how much of a line is kept before it is written in parts.
const longest = 16 << 10

// logFile is a container's log, in the form that the kubelet reads: time, stream, full (F) or part of a line (P), text.
type logFile struct {
	path string

	mu   sync.Mutex
	file *os.File
}

// open opens the log; when the kubelet has renamed it, a new one. Where that fails the old one is kept.
func (l *logFile) open() error {
	if l.path == "" {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(l.path), 0o755); err != nil {
		return err
	}
	f, err := os.OpenFile(l.path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o640)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file != nil {
		l.file.Close()
	}
	l.file = f
	return nil
}

// stream is one of a container's two; it is told of output as it comes.
type stream struct {
	log  *logFile
	name string
	rest []byte // of a line whose end has not come
}

func (s *stream) write(data []byte) {
	var out []byte
	s.rest = append(s.rest, data...)
	for {
		end := bytes.IndexByte(s.rest, '\n')
		if end < 0 && len(s.rest) < longest {
			break
		}
		if end < 0 || end > longest {
			out = s.line(out, "P", s.rest[:longest])
			s.rest = s.rest[longest:]
			continue
		}
		out = s.line(out, "F", s.rest[:end])
		s.rest = s.rest[end+1:]
	}
	s.put(out)
}

// line adds one of the log.
func (s *stream) line(out []byte, tag string, text []byte) []byte {
	out = append(time.Now().UTC().AppendFormat(out, time.RFC3339Nano), " "+s.name+" "+tag+" "...)
	return append(append(out, text...), '\n')
}

// end writes what came without a line's end, as a part: so readers get no end that was not written.
func (s *stream) end() {
	if len(s.rest) > 0 {
		s.put(s.line(nil, "P", s.rest))
	}
}

func (s *stream) put(lines []byte) {
	s.log.mu.Lock()
	defer s.log.mu.Unlock()
	if s.log.file != nil && len(lines) > 0 {
		s.log.file.Write(lines) // a disk that is full stops the log, not the container
	}
}
