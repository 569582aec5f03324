package etcd

// RestartWatch lets the next response of etcd restart the watch, as after a new connection.
func (s *Store) RestartWatch() { s.position.connections.Add(1) }
