"""From a file of ratings to predictions with intervals. Needs the extra: pip install 'hamcmc[ratings]'."""

from pathlib import Path

import hamcmc
from hamcmc.factorization.ratings import read
from hamcmc.factorization.synthetic import movielens_like

# A file such as people have: one line for each rating. These ratings are made up.
made = movielens_like(users=200, items=100, ratings=6000, rank=3, seed=0).ratings
lines = (f"{made.users[i]},{made.items[j]},{x:g}" for i, j, x in zip(made.row, made.column, made.value))
Path("ratings.csv").write_text("\n".join(["user,item,rating", *lines]) + "\n")

ratings = read("ratings.csv")
model = hamcmc.factorize(ratings, rank=3, num_samples=50, warmup=20, seed=0)
covered = float(model.coverage((0.9,))[0])
print(f"RMSE {model.rmse():.3f} on held-out ratings; the 90 % intervals cover {covered:.0%} of them")

user = ratings.users[0]
items, predicted = model.recommend(user, top=5, clip=True)
print(f"best items for user {user}:")
for item, mean, low, high in zip(items, predicted.mean, predicted.low, predicted.high):
    print(f"  item {item}: {mean:.2f}, between {low:.2f} and {high:.2f}")
