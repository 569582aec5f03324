package h2

import "sync"

const (
	// headroom is how many bytes can be put before those of a Buffer: what frames a piece of data takes less.
	headroom = 64
	// MaxPiece is how many bytes a Buffer has room for at most.
	MaxPiece = 64 << 10
)

// bufferSizes are those of the memory of Buffers, from the smallest.
var bufferSizes = [...]int{512, 4<<10 + headroom, 16<<10 + headroom, MaxPiece + headroom}

var bufferPools [len(bufferSizes)]sync.Pool

// Window is told how many bytes, of those that came from it, are done with. It must not block.
type Window interface{ Credit(n int) }

// Buffer is a piece of data that is handed on without being copied. Whoever has it owns it, until it is handed on or Released.
type Buffer struct {
	memory    []byte
	from, to  int
	sizeClass int // which of the sizes
	next      *Buffer
	window    Window
	credit    int
}

// NewBuffer returns a Buffer of n bytes, at most MaxPiece, that the caller fills.
func NewBuffer(n int) *Buffer {
	size := 0
	for bufferSizes[size] < n+headroom {
		size++
	}
	b, ok := bufferPools[size].Get().(*Buffer)
	if !ok {
		b = &Buffer{memory: make([]byte, bufferSizes[size]), sizeClass: size}
	}
	b.from, b.to = headroom, headroom+n
	return b
}

// BufferOf returns a Buffer with a copy of at most MaxPiece bytes.
func BufferOf(p []byte) *Buffer {
	b := NewBuffer(len(p))
	copy(b.Bytes(), p)
	return b
}

// Bytes are what is in it. They are the Buffer's.
func (b *Buffer) Bytes() []byte { return b.memory[b.from:b.to] }

// Len is how many bytes are in it. In nil there are none.
func (b *Buffer) Len() int {
	if b == nil {
		return 0
	}
	return b.to - b.from
}

// TryAppend takes in another Buffer at its end, with what is owed for it, where there is room and both owe the same. So many small pieces
// take little memory. It says whether it has.
func (b *Buffer) TryAppend(other *Buffer) bool {
	if b == nil || len(b.memory)-b.to < other.Len() || b.window != other.window {
		return false
	}
	b.to += copy(b.memory[b.to:], other.Bytes())
	_, due := other.TakeWindow()
	b.credit += due
	other.Release()
	return true
}

// Prepend puts bytes before those in it. It panics where they and those that were put there before are more than 64.
func (b *Buffer) Prepend(p []byte) {
	b.from -= len(p)
	copy(b.memory[b.from:], p)
}

// Skip takes n bytes away from the front.
func (b *Buffer) Skip(n int) { b.from += n }

// Truncate leaves the first n bytes.
func (b *Buffer) Truncate(n int) { b.to = b.from + n }

// SetWindow has Release give a Creditor credit for n bytes.
func (b *Buffer) SetWindow(to Window, n int) { b.window, b.credit = to, n }

// TakeWindow is what Owe was told; Release owes it no more.
func (b *Buffer) TakeWindow() (to Window, n int) {
	to, n = b.window, b.credit
	b.window, b.credit = nil, 0
	return to, n
}

// Release says that the bytes are done with, and gives the memory back. Nil is released already.
func (b *Buffer) Release() {
	if b == nil {
		return
	}
	to, n := b.TakeWindow()
	b.next = nil
	bufferPools[b.sizeClass].Put(b)
	if n > 0 {
		to.Credit(n)
	}
}

// releaseAll releases a chain of Buffers. The caller holds no lock, as those that they are owed to take theirs.
func releaseAll(first *Buffer) {
	for b := first; b != nil; {
		next := b.next
		b.Release()
		b = next
	}
}
