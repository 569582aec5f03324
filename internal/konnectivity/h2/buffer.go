package h2

import "sync"

const (
	// headroom is the number of bytes that can be prepended to a Buffer. The prefixes of a piece of data need
	// less.
	headroom = 64
	// MaxPiece is the maximum number of bytes that a Buffer can hold.
	MaxPiece = 64 << 10
)

// bufferSizes lists the memory sizes of Buffers, in ascending order.
var bufferSizes = [...]int{512, 4<<10 + headroom, 16<<10 + headroom, MaxPiece + headroom}

var bufferPools [len(bufferSizes)]sync.Pool

// Window is the flow-control window that data occupies. Credit returns n bytes to it when they have been
// consumed. Credit must not block.
type Window interface{ Credit(n int) }

// Buffer holds a piece of data that is passed on without copying. It has a single owner: the owner passes it on
// or calls Release. Release returns its memory to a pool and credits its Window.
type Buffer struct {
	memory    []byte
	from, to  int
	sizeClass int // index in bufferSizes
	next      *Buffer
	window    Window
	credit    int // bytes that Release credits to window
}

// NewBuffer returns a Buffer of n bytes for the caller to fill. n must be at most MaxPiece.
func NewBuffer(n int) *Buffer {
	class := 0
	for bufferSizes[class] < n+headroom {
		class++
	}
	b, ok := bufferPools[class].Get().(*Buffer)
	if !ok {
		b = &Buffer{memory: make([]byte, bufferSizes[class]), sizeClass: class}
	}
	b.from, b.to = headroom, headroom+n
	return b
}

// BufferOf returns a Buffer with a copy of p, which must be at most MaxPiece bytes.
func BufferOf(p []byte) *Buffer {
	b := NewBuffer(len(p))
	copy(b.Bytes(), p)
	return b
}

// Bytes returns the data. The slice is valid as long as the caller owns the Buffer.
func (b *Buffer) Bytes() []byte { return b.memory[b.from:b.to] }

// Len returns the number of bytes. A nil Buffer is empty.
func (b *Buffer) Len() int {
	if b == nil {
		return 0
	}
	return b.to - b.from
}

// TryAppend appends the data and the credit of the Buffer other to b, and releases other. If b lacks the space or
// the windows differ, it changes nothing and reports false. It saves memory when there are many small pieces.
func (b *Buffer) TryAppend(other *Buffer) bool {
	if b == nil || len(b.memory)-b.to < other.Len() || b.window != other.window {
		return false
	}
	b.to += copy(b.memory[b.to:], other.Bytes())
	_, credit := other.TakeWindow()
	b.credit += credit
	other.Release()
	return true
}

// Prepend inserts p before the data. It panics if all prepended bytes together exceed 64.
func (b *Buffer) Prepend(p []byte) {
	b.from -= len(p)
	copy(b.memory[b.from:], p)
}

// Skip removes the first n bytes.
func (b *Buffer) Skip(n int) { b.from += n }

// Truncate keeps only the first n bytes.
func (b *Buffer) Truncate(n int) { b.to = b.from + n }

// SetWindow makes Release credit n bytes to window.
func (b *Buffer) SetWindow(window Window, n int) { b.window, b.credit = window, n }

// TakeWindow returns the arguments of SetWindow and clears them, so that Release credits nothing.
func (b *Buffer) TakeWindow() (window Window, n int) {
	window, n = b.window, b.credit
	b.window, b.credit = nil, 0
	return window, n
}

// Release returns the memory of the Buffer to its pool and credits its window. It does nothing if the Buffer is
// nil.
func (b *Buffer) Release() {
	if b == nil {
		return
	}
	window, n := b.TakeWindow()
	b.next = nil
	bufferPools[b.sizeClass].Put(b)
	if n > 0 {
		window.Credit(n)
	}
}

// releaseAll releases a chain of Buffers. The caller must hold no lock, because the windows take their own
// locks.
func releaseAll(first *Buffer) {
	for b := first; b != nil; {
		next := b.next
		b.Release()
		b = next
	}
}
