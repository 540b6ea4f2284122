"""`--model none`: a trainer that takes the stream as any other, counts it, and learns nothing. No torch."""
