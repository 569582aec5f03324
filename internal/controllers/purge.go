package controllers

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/metadata"
)

// purge deletes all objects of a kind in one namespace, page by page: the answer to a deletion holds
// what was deleted.
func purge(ctx context.Context, client metadata.ResourceInterface, how metav1.DeleteOptions) error {
	page := metav1.ListOptions{Limit: 500}
	for {
		listed, err := client.List(ctx, page)
		if err != nil {
			return err
		}
		if len(listed.Items) > 0 {
			if err := client.DeleteCollection(ctx, how, page); err != nil {
				return err
			}
		}
		if page.Continue = listed.Continue; page.Continue == "" {
			return nil
		}
	}
}
