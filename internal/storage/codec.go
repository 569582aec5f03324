package storage

// Codec converts values between the JSON of the Store interface and their form in the log.
type Codec struct {
	Encode func(value []byte) ([]byte, error)
	Decode func(data []byte) ([]byte, error)
}

// Codecs maps prefixes of keys, which end with a slash, to the codecs of the values below them. The longest matching
// prefix applies. Values without a codec are the same in the log.
type Codecs map[string]Codec

// Of returns the codec of a key. It reports false if the key has none.
func (c Codecs) Of(key string) (found Codec, ok bool) {
	if len(c) == 0 {
		return found, false
	}
	for i := len(key) - 1; i >= 0; i-- {
		if key[i] != '/' {
			continue
		}
		if found, ok = c[key[:i+1]]; ok {
			return found, true
		}
	}
	return found, false
}
